"""From the journal into the lake, each entry once, whatever happens to this process.

Spark writes down the range of a batch before it reads it (the checkpoint), and each batch becomes a
directory in one step (``commit``). So a batch that was cut off is read again, and one that was not is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.errors import StreamingQueryException

from celery_poison.errors import LedgerUnavailable, PoisonError
from celery_poison.pipeline.batches import Gap, Manifest
from celery_poison.pipeline.ingest import direct, lock
from celery_poison.pipeline.ingest.commit import Commit, trim
from celery_poison.pipeline.ingest.compact import compact
from celery_poison.pipeline.ingest.source import NAME, Wanted
from celery_poison.pipeline.lake import Lake

#: Seconds between two looks at a query that runs.
_LOOK = 0.2


class IngestFailed(PoisonError):
    """Spark gave up; the text is its reason."""


@dataclass(frozen=True)
class Ingested:
    """What one run did.

    Attributes:
        rows: entries that came into the lake.
        batches: in which they came.
        upto: the newest entry in the lake; empty while it has none.
        gaps: entries that had been trimmed before they could be read.
        trimmed: entries dropped from Redis at the end of the run.
    """

    rows: int
    batches: int
    upto: str
    gaps: tuple[Gap, ...]
    trimmed: int


@dataclass(frozen=True)
class Ingest:
    """One journal and its lake.

    Attributes:
        options: of the data source, see ``source``: ``url``, ``namespace``, …
        keep_hours: trim what is safely in the lake and older than so many hours; None: never trim.
        compacting: put small batches together.
        progress: is told each batch that came into the lake.
    """

    lake: Lake
    options: dict[str, str]
    keep_hours: float | None = None
    compacting: bool = True
    progress: Callable[[Manifest], None] = lambda manifest: None

    def once(self) -> Ingested:
        """Ingest what is there now, and return.

        Raises:
            LakeLocked: another ingest works on this lake.
            LedgerUnavailable: Redis is away; what was ingested before stays.
            IngestFailed: Spark gave up, or the lake's checkpoint is missing.
        """
        return self._run({"availableNow": True}, lambda: False)

    def follow(self, stopping: Callable[[], bool], seconds: float = 5.0) -> Ingested:
        """Ingest until ``stopping()``, a batch every so many seconds; raises as ``once`` does."""
        return self._run({"processingTime": f"{seconds} seconds"}, stopping)

    def _run(self, trigger: dict[str, Any], stopping: Callable[[], bool]) -> Ingested:
        lake = self.lake
        wanted = Wanted.from_options(self.options)
        wanted.stream().tip()  # an unreachable Redis is told in our words, and before anything is begun
        with lock.Lock(lake.files, lake.lock_path) as held:
            lake.files.delete(lake.staging)
            before = lake.batches().counting
            _refuse_without_checkpoint(lake, before)
            last = before[-1].last if before else -1
            into = f"{lake.staging}/{held.owner}/files" if lake.tasks_write else ""
            commit = Commit(lake.root, wanted, held.owner, into, self.keep_hours, self.compacting)
            query = self._start(commit, trigger)
            seen: dict[int, Manifest] = {}
            ended: int | None = None
            try:
                while query.isActive and not stopping():
                    with suppress(StreamingQueryException):  # looked at below
                        query.awaitTermination(_LOOK)
                    progress = query.lastProgress
                    if progress and progress["batchId"] != ended:  # looking into the lake may cost
                        ended = progress["batchId"]
                        self._tell(last, seen)
            finally:
                _stop(query)
            self._tell(last, seen)
            _raise_failure(query)
            return self._finish(commit, before)

    def _start(self, commit: Commit, trigger: dict[str, Any]) -> Any:
        session = self.lake.session
        stream = session.readStream.options(**self.options)
        if commit.into:
            session.dataSource.register(direct.FilesSource)
            stream = stream.format(direct.NAME).option("into", commit.into)
        else:
            stream = stream.format(NAME)
        writer = stream.load().writeStream.foreachBatch(commit).trigger(**trigger)
        return writer.option("checkpointLocation", self.lake.checkpoint).start()

    def _tell(self, last: int, seen: dict[int, Manifest]) -> None:
        for manifest in self.lake.batches().counting[-50:]:
            if manifest.first > max(last, *seen, -1):
                seen[manifest.last] = manifest
                self.progress(manifest)

    def _finish(self, commit: Commit, before: Sequence[Manifest]) -> Ingested:
        lake = self.lake
        if self.compacting:
            compact(lake, commit.owner)
        now = lake.batches()
        trimmed = 0
        if now.newest and self.keep_hours is not None:
            trimmed = trim(commit.wanted.stream(), now.newest.upto, self.keep_hours)
        known = set(_gaps(before))
        return Ingested(
            rows=_rows(now.counting) - _rows(before),
            batches=(now.newest.last if now.newest else -1) - (before[-1].last if before else -1),
            upto=now.newest.upto if now.newest else "",
            gaps=tuple(gap for gap in _gaps(now.counting) if gap not in known),
            trimmed=trimmed,
        )


def _refuse_without_checkpoint(lake: Lake, before: Sequence[Manifest]) -> None:
    """Spark would count its batches from 0 again, and take new ones for those that are in the lake."""
    if before and not lake.files.names(f"{lake.checkpoint}/offsets"):
        raise IngestFailed(
            f"the lake reaches up to {before[-1].upto}, and its checkpoint is missing, which says where to go"
            f" on: bring {lake.checkpoint} back, or ingest into another lake"
        )


def _rows(manifests: Sequence[Manifest]) -> int:
    return sum(manifest.rows for manifest in manifests)


def _gaps(manifests: Sequence[Manifest]) -> list[Gap]:
    return [gap for manifest in manifests for gap in manifest.gaps]


def _stop(query: Any) -> None:
    """Let the batch that runs come to its end, for a moment, and stop."""
    end = time.monotonic() + 10
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
        time.sleep(_LOOK)
    query.stop()


def _raise_failure(query: Any) -> None:
    error = query.exception()
    if error is None:
        return
    text = str(error)
    for ours in ("LedgerUnavailable", "LockLost", "ForeignCheckpoint"):
        if ours in text:
            reason = text.partition(f"{ours}: ")[2].splitlines()[0] if f"{ours}: " in text else ours
            raise (LedgerUnavailable if ours == "LedgerUnavailable" else IngestFailed)(reason)
    raise IngestFailed(text.splitlines()[0])
