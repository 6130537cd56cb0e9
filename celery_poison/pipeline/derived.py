"""The tables that are made of the journal, where they are stored, and making what is not there yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery_poison.errors import PoisonError
from celery_poison.pipeline import blame, tables
from celery_poison.pipeline.anomalies import anomalies
from celery_poison.pipeline.arrow import survey
from celery_poison.pipeline.arrow.split import split
from celery_poison.pipeline.lake import Lake, Reading
from celery_poison.pipeline.schema import JOURNAL
from celery_poison.pipeline.telling import sentences
from celery_poison.pipeline.together import together

TABLES = ("attempts", "incidents", "messages", "fingerprints", "task_daily", "tallies", "kin", "usual")
#: Deaths are few and asked for on their own, again and again: they are stored apart.
PARTITIONS = {"attempts": ("end",)}
#: Values that hardly come twice are not looked up in a dictionary first. Encoding is what costs.
_UNIQUE = ("token", "id", "mid", "seq", "started_at", "ended_at", "first_at", "last_at")
_ENCODING = {
    "parquet.size.statistics.enabled": "false",
    **{f"parquet.enable.dictionary#{name}": "false" for name in _UNIQUE},
}

#: Where what is being made waits, below the tables.
_ASIDE = "_making"


class Derived:
    """Tables of one lake: made anew with :meth:`make`, or as they were made last.

    Args:
        progress: is told in words what is being done.
    """

    def __init__(
        self, session: Any, lake: Lake, progress: Callable[[str], None] = lambda words: None
    ) -> None:
        self._session, self._lake, self._progress = session, lake, progress
        self._reading: Reading | None = None
        self._fresh: dict[str, Any] = {}
        self._files: dict[str, list[str]] = {}

    def make(self) -> None:
        """Make all of :data:`TABLES` and the blame, from what the lake has now."""
        aside = self._lake.table(_ASIDE)
        self._lake.files.delete(aside)
        journal = self.reading.journal
        with self._timed("healthy runs"):
            parts = split(self._lake, journal, aside)
        if parts:
            journal, self._files = parts.rest, parts.files
        rest = tables.noted(journal).drop("entry", "v", "state", "actor").persist()
        together(
            lambda: self._store("messages", tables.messages(journal, rest)),
            lambda: self._make_of_attempts(tables.attempts(journal, rest), rest),
        )
        rest.unpersist()
        self._files = {}
        self._lake.files.delete(aside)

    def _make_of_attempts(self, attempts: Any, rest: Any) -> None:
        attempts = self._store("attempts", attempts)
        together(lambda: self._store("incidents", tables.incidents(rest, attempts)), self._count)

    def _count(self) -> None:
        """Make what only counts attempts, or picks a few of them."""
        attempts = self["attempts"]
        with self._timed("counts"):
            made = survey.survey(self._lake, f"{self._lake.table(_ASIDE)}/counts")
            for name, files in (made or {}).items():
                self._store_with(None, name, files)
                self._fresh[name] = self._stored(name)
        if made is None:
            self._store("tallies", tables.tallies(attempts))
            self._store("kin", tables.kin(attempts))
            self._store("usual", tables.usual(attempts, self["tallies"]))
            self._store("task_daily", tables.task_daily(attempts))
        self._store("fingerprints", tables.fingerprints(self["kin"]))

    def judge(self) -> None:
        """Make ``blame``, ``measures`` and ``anomalies`` of the attempts."""
        for name in TABLES:
            self[name]  # made here, where they are not there yet, and not by both at once
        together(self._blame, self._anomalies)

    def _blame(self) -> None:
        attempts = self["attempts"]
        alive = blame.runs_alive(attempts, self["tallies"], self["fingerprints"])
        self._store("blame", blame.score(blame.spectrum(attempts, alive=alive)))
        self._store("measures", blame.compare(attempts, alive=alive))

    def _anomalies(self) -> None:
        found = anomalies(self["attempts"], self["incidents"], self["tallies"], self["usual"])
        self._store("anomalies", found.coalesce(1))

    @property
    def reading(self) -> Reading:
        if self._reading is None:
            with self._timed("reading the lake"):
                self._reading = self._lake.read()
        return self._reading

    @property
    def left_out(self) -> list[str]:
        """What is missing in the tables, as sentences."""
        return sentences(self.reading)

    def __getitem__(self, name: str) -> Any:
        """Return one table as it is stored; made first, with the others, where there is none."""
        if name not in self._fresh:
            from pyspark.errors import AnalysisException

            try:
                stored = self._stored(name)
                stored.schema  # noqa: B018 - Spark Connect looks whether it is there no sooner than now
                self._fresh[name] = stored
            except AnalysisException:
                self.make() if name in TABLES else self.judge()
        return self._fresh[name]

    def _store(self, name: str, frame: Any) -> Any:
        parts = PARTITIONS.get(name, ())
        with self._timed(name):
            writer = frame.write.mode("overwrite").partitionBy(*parts).options(**_ENCODING)
            files = self._files.get(name)
            if files:
                self._store_with(writer, name, files)
            else:
                writer.parquet(self._lake.table(name))
        self._fresh[name] = self._stored(name)
        return self._fresh[name]

    def _store_with(self, writer: Any, name: str, files: Sequence[str]) -> None:
        """Put together what Spark writes and what tasks wrote, beside the old table, and change them over."""
        lake, place = self._lake.files, self._lake.table(name)
        fresh, old = f"{self._lake.table(_ASIDE)}/{name}", f"{self._lake.table(_ASIDE)}/old-{name}"
        if writer is not None:
            writer.parquet(fresh)
        inner = "end=finished/" if name == "attempts" else ""
        for path in files:
            if not lake.rename(path, f"{fresh}/{inner}{path.rpartition('/')[2]}"):
                raise PoisonError(f"{path} was written by a task, but is not there")
        lake.rename(place, old)
        if not lake.rename(fresh, place):
            raise PoisonError(f"{fresh} could not be renamed to {place}")
        self._session.catalog.refreshByPath(place)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._progress(f"{name}: {time.monotonic() - began:.1f} s")

    def _stored(self, name: str) -> Any:
        reader, place = self._session.read, self._lake.table(name)
        if name not in PARTITIONS:
            return reader.parquet(place)
        # A table in partitions that has no row has no file that could tell its schema.
        schema = tables.attempts(self._session.createDataFrame([], JOURNAL)).schema
        return reader.schema(schema).parquet(place).select(*schema.names)
