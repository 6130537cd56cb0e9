"""The tables that are made of the journal, where they are stored, and making what is not there yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery_poison.pipeline import blame, tables
from celery_poison.pipeline.anomalies import anomalies
from celery_poison.pipeline.lake import Lake, Reading
from celery_poison.pipeline.schema import JOURNAL
from celery_poison.pipeline.telling import sentences

TABLES = ("attempts", "incidents", "messages", "fingerprints", "task_daily")
#: Deaths are few and asked for on their own, again and again: they are stored apart.
PARTITIONS = {"attempts": ("end",)}


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

    def make(self) -> None:
        """Make all of :data:`TABLES` and the blame, from what the lake has now."""
        journal = self.reading.journal
        attempts = self._store("attempts", tables.attempts(journal))
        self._store("incidents", tables.incidents(journal, attempts))
        self._store("messages", tables.messages(journal))
        self._store("fingerprints", tables.fingerprints(attempts))
        self._store("task_daily", tables.task_daily(attempts))

    def judge(self) -> None:
        """Make ``blame``, ``measures`` and ``anomalies`` of the attempts."""
        attempts = self["attempts"]
        self._store("anomalies", anomalies(attempts, self["incidents"]).coalesce(1))
        alive = blame.runs_alive(attempts).persist()
        self._store("blame", blame.score(blame.spectrum(attempts, alive=alive)))
        self._store("measures", blame.compare(attempts, alive=alive))

    @property
    def reading(self) -> Reading:
        if self._reading is None:
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
                self._fresh[name] = self._stored(name)
            except AnalysisException:
                self.make() if name in TABLES else self.judge()
        return self._fresh[name]

    def _store(self, name: str, frame: Any) -> Any:
        began = time.monotonic()
        parts = PARTITIONS.get(name, ())
        frame.write.mode("overwrite").partitionBy(*parts).parquet(self._lake.table(name))
        self._progress(f"{name}: {time.monotonic() - began:.1f} s")
        self._fresh[name] = self._stored(name)
        return self._fresh[name]

    def _stored(self, name: str) -> Any:
        reader, place = self._session.read, self._lake.table(name)
        if name not in PARTITIONS:
            return reader.parquet(place)
        # A table in partitions that has no row has no file that could tell its schema.
        schema = tables.attempts(self._session.createDataFrame([], JOURNAL)).schema
        return reader.schema(schema).parquet(place).select(*schema.names)
