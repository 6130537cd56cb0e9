"""One batch of the stream becomes one directory of the lake, once.

Spark may give the same batch again after a crash, with the same range of ids. What is in the lake by then is
not written again: the journal may have been trimmed in between.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from celery_poison.errors import PoisonError
from celery_poison.pipeline.batches import Gap, Manifest, find
from celery_poison.pipeline.files import renames_atomically
from celery_poison.pipeline.ingest import lock
from celery_poison.pipeline.ingest.compact import compact
from celery_poison.pipeline.ingest.direct import Receipt
from celery_poison.pipeline.ingest.source import Wanted
from celery_poison.pipeline.ingest.stream import BEGINNING, Stream, parts
from celery_poison.pipeline.ingest.writing import count_versions, gather, publish, write_rows
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.schema import UNKNOWN


class ForeignCheckpoint(PoisonError):
    """Checkpoint and lake do not belong together."""


@dataclass(frozen=True)
class Commit:
    """What Spark calls with each batch; with Spark Connect it is called on the server.

    Attributes:
        root: of the lake.
        wanted: the stream.
        owner: of the lake's lock.
        into: where the tasks wrote files, and ``rows`` are their receipts; empty: ``rows`` are entries.
        keep_hours: trim what is in the lake and older than so many hours; None: trim nothing.
        compacting: put small batches together on the way.
    """

    root: str
    wanted: Wanted
    owner: str
    into: str = ""
    keep_hours: float | None = None
    compacting: bool = True

    def __call__(self, rows: Any, number: int) -> None:
        lake = Lake(rows.sparkSession, self.root)
        begin, end = _offsets(lake, number)
        found = find(lake.files, lake.journal_directory)
        there = next((m for m in found.counting if m.first <= number <= m.last), None)
        if there:
            _refuse_foreign(there, end, number)
            return
        if found.newest and found.newest.last > number:
            raise ForeignCheckpoint(f"the lake has batch {found.newest.last}, its checkpoint is at {number}")
        if self.compacting:
            compact(lake, self.owner)
        place, versions = self._write(lake, rows, number)
        manifest = Manifest(
            first=number,
            last=number,
            after=begin["id"],
            upto=end["id"],
            rows=sum(versions.values()),
            versions=versions,
        )
        stream = self.wanted.stream()
        manifest = _account(manifest, begin, end, found.newest, stream)
        lock.check(lake.files, lake.lock_path, self.owner)
        publish(lake, place, manifest)
        if self.keep_hours is not None:
            trim(stream, begin["id"], self.keep_hours)

    def _write(self, lake: Lake, rows: Any, number: int) -> tuple[str, dict[str, int]]:
        """Write the batch where no reader looks, or where it counts only when it is marked.

        Where no reader looks each run has a corner of its own: a killed driver may leave a Java behind that
        writes for a moment more.

        Returns:
            where, and how many entries of each schema version are there.
        """
        home = f"{lake.staging}/{self.owner}" if renames_atomically(lake.root) else lake.journal_directory
        place = f"{home}/batch={number}"
        lake.files.delete(place)
        if self.into:
            return place, gather(lake, [Receipt.of(row) for row in rows.collect()], self.into, place)
        write_rows(rows, place)
        return place, count_versions(lake, place)


def _offsets(lake: Lake, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return where a batch begins and ends, as Spark wrote it down before it asked for the rows."""
    end = _offset(lake, number)
    begin = _offset(lake, number - 1) if number else {"id": BEGINNING, "added": 0}
    return begin, end


def _offset(lake: Lake, number: int) -> dict[str, Any]:
    text = lake.files.read(f"{lake.checkpoint}/offsets/{number}") or ""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    offset: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if "id" not in offset:
        raise ForeignCheckpoint(f"{lake.checkpoint} does not say where batch {number} ends")
    return offset


def _refuse_foreign(there: Manifest, end: dict[str, Any], number: int) -> None:
    # Of batches that were put together nobody knows any more where the first ones ended.
    later = there.last > number and parts(end["id"]) > parts(there.upto)
    if later or (there.last == number and there.upto != end["id"]):
        raise ForeignCheckpoint(
            f"batch {number} of the lake ends at {there.upto}, that of its checkpoint at {end['id']}:"
            " one of the two was replaced; ingest into another lake"
        )


def _account(
    manifest: Manifest, begin: dict[str, Any], end: dict[str, Any], before: Manifest | None, stream: Stream
) -> Manifest:
    """Complete a manifest with what is missing from its range, as far as Redis can tell."""
    base, since = (before.base, before.since) if before else (begin["added"], 0)
    since += manifest.rows
    if end["added"] == UNKNOWN and base != UNKNOWN and _counts(stream):
        return replace(manifest, base=base, since=since)  # not at the end of the stream: the next will tell
    gap = None
    if parts(end["id"]) < parts(begin["id"]):
        why = "the stream was replaced: it ends before what is in the lake, and is read from its end on"
        gap = Gap(begin["id"], end["id"], None, why)
    elif end["added"] != UNKNOWN and base != UNKNOWN:
        gap = _counted(manifest, before, end["added"] - base, since)
    elif begin["id"] != BEGINNING and not stream.last_upto(begin["id"]):
        gap = Gap(begin["id"], manifest.upto, None, "trimmed or deleted before they were ingested")
    return replace(manifest, base=end["added"], since=0, gaps=(gap,) if gap else ())


def _counts(stream: Stream) -> bool:
    return stream.tip().added != UNKNOWN


def _counted(manifest: Manifest, before: Manifest | None, expected: int, found: int) -> Gap | None:
    if expected < 0:
        why = "the stream was replaced: fewer entries were ever added to it than had been before"
        return Gap(manifest.after, manifest.upto, None, why)
    if expected <= found:
        return None
    after = before.upto if before else BEGINNING
    why = "trimmed or deleted before they were ingested"
    return Gap(min(after, manifest.after, key=parts), manifest.upto, expected - found, why)


def trim(stream: Stream, upto: str, keep_hours: float) -> int:
    """Drop from Redis what is in the lake and old enough; the newest entry of the lake stays.

    By that entry the next batch recognises, beside a Redis that counts nothing, that nothing is missing.

    Returns:
        how many entries were dropped.
    """
    oldest = stream.now_ms() - int(keep_hours * 3_600_000)
    upto = min(upto, f"{oldest}-0", key=parts) if keep_hours else upto
    last = stream.last_upto(upto)
    return stream.trim(last) if last else 0
