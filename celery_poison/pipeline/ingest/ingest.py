"""From the journal into the lake, each entry once, whatever happens to this process.

A round reads the entries after the lake's position up to the journal's end: Spark's tasks write them into
files, and the driver commits the files and the new position in one step. There is no other record of
progress, so that nothing can disagree with it: a round that was cut off is simply made again, and of two
drivers that read the same entries one is refused at its commit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.connection import clear_errors, open_redis
from celery_poison.ledger.keys import Keys
from celery_poison.pipeline import maintain, sink
from celery_poison.pipeline.ingest.stream import FETCH, Stream, Tip, expected, halfway, parts, ranges
from celery_poison.pipeline.lake import LARGEST, Gap, Lake, LakeError, Position
from celery_poison.pipeline.schema import LAKE, UNKNOWN

_TRIMMED = "trimmed or deleted before they were ingested"
#: So few entries are not worth a task more.
_SHARE = 20_000


@dataclass(frozen=True)
class Wanted:
    """Which journal, and how it is read. Goes to the executors, so that it holds no connection.

    Attributes:
        master_name: of the Sentinels' master, beside a ``sentinel://`` URL.
        app_name: whose journal it is, if that is not to be asked of the ledger.
        partitions: most tasks to read with at a time.
        max_rows: about so many entries in one batch.
        fetch: entries asked of Redis at a time.
    """

    url: str
    namespace: str = "poison"
    master_name: str = ""
    app_name: str = ""
    partitions: int = 4
    max_rows: int = 1_000_000
    fetch: int = FETCH

    def stream(self) -> Stream:
        return Stream(self.url, Keys(self.namespace).journal, self.master_name)


@dataclass(frozen=True)
class Ingested:
    """The result of one run of the ingestion.

    Attributes:
        rows: entries that came into the lake.
        batches: commits in which they came.
        upto: the newest entry in the lake; empty while it has none.
        gaps: entries that had been trimmed before they could be read.
        trimmed: entries dropped from Redis.
    """

    rows: int = 0
    batches: int = 0
    upto: str = ""
    gaps: tuple[Gap, ...] = ()
    trimmed: int = 0


@dataclass
class Ingest:
    """One journal and its lake.

    Attributes:
        wanted: its journal.
        keep_hours: trim what is safely in the lake and older than so many hours; None: never trim.
        compacting: put small files together now and then.
        moved: the lake's rows of this app come from another journal from now on.
        progress: is told each commit, in words.
    """

    lake: Lake
    wanted: Wanted
    keep_hours: float | None = None
    compacting: bool = True
    moved: bool = False
    progress: Callable[[str], None] = lambda words: None
    _stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self._stream = self.wanted.stream()

    def once(self) -> Ingested:
        """Ingest what is there now, and return.

        Raises:
            LakeTaken: another ingest committed first.
            LakeError: the lake's rows of this app come from another journal.
            LedgerUnavailable: Redis is away; what was ingested before stays.
        """
        goal = self._open()
        while self._round(goal) is not None:
            pass
        return self._told()

    def follow(self, stopping: Callable[[], bool], seconds: float = 60.0) -> Ingested:
        """Ingest until ``stopping()``, looking every so many seconds; raises as ``once`` does."""
        self._open()
        while not stopping():
            rows = self._round(self._stream.tip())
            if rows is not None:
                self._trim()
            due = time.monotonic() + (0 if (rows or 0) >= self.wanted.max_rows else seconds)
            while time.monotonic() < due and not stopping():
                time.sleep(min(0.2, seconds))
        return self._told()

    def _open(self) -> Tip:
        """Look where to begin, and whether the lake is this journal's; return the journal's end."""
        self._done, goal = Ingested(), self._stream.tip()
        app, journal = whose(self.wanted)
        self.lake.app = app
        self.lake.journal.create(LAKE)
        self._identity = f"{self.lake.app} of {journal}"
        table = self.lake.journal
        known = table.delta.transaction_version(self._identity) is not None
        if table.position(self.lake.app) and not known and not self.moved:
            raise LakeError(
                f"{self.lake.root} has entries of {self.lake.app} from another journal (another Redis or"
                " broker, or one that was emptied): ingest into another lake, give this journal a name by"
                " --app-name, or say --moved if it is the same app, whose journal is another one from now on"
            )
        return goal

    def _round(self, goal: Tip) -> int | None:
        """Bring one batch into the lake, and return of how many entries; None where there is nothing new."""
        table = self.lake.journal
        table.refresh()  # maintenance may have deleted since
        before = table.position(self.lake.app) or Position()
        upto, added = goal.id, goal.added
        if clipped(upto) == (before.ms, before.seq) and before.added in (added, UNKNOWN):
            return None
        first = self._stream.first_after(str(before))
        if goal.length > self.wanted.max_rows and (nearer := halfway(first, goal, self.wanted.max_rows)):
            upto, added = nearer, UNKNOWN
        cut = ranges(str(before), upto, first, self._tasks(before, goal, upto))
        files = self._bring(cut) if cut else []
        rows = sum(file.rows for file in files)
        position, gap = account(before, clipped(upto), added, rows, self._stream)
        if gap:
            self.lake.add_gap(gap)
        told = {"after": str(before), "upto": upto, "rows": rows, "gaps": [gap.why] if gap else []}
        table.commit(files, self.lake.app, position, told, identity=self._identity)
        self.progress(f"version {table.version}: {rows} entries up to {upto}")
        done = self._done
        self._done = replace(done, rows=done.rows + rows, batches=done.batches + 1)
        if gap:
            self.progress(str(gap))
            self._done = replace(self._done, gaps=(*done.gaps, gap))
        if self.compacting and table.version % 16 == 0:
            maintain.compact(table)
        return rows

    def _tasks(self, before: Position, goal: Tip, upto: str) -> int:
        many = expected(str(before), goal) - (expected(upto, goal) if upto != goal.id else 0)
        return max(1, min(self.wanted.partitions, many // _SHARE))

    def _bring(self, spans: list[tuple[str, str]]) -> list[sink.Written]:
        rows = self.lake.session.range(0, len(spans), 1, len(spans))
        place = self.lake.journal
        task = partial(
            bring, wanted=self.wanted, spans=spans, app=self.lake.app, table=(place.uri, place.partitions)
        )
        try:
            return sink.tell(rows, task)
        except Exception as error:
            # What a task raised of ours, in place of what Spark makes of it.
            _, ours, reason = str(error).partition("LedgerUnavailable: ")
            if ours and not isinstance(error, LedgerUnavailable):
                raise LedgerUnavailable(reason.splitlines()[0]) from error
            raise

    def _told(self) -> Ingested:
        self._trim()
        position = self.lake.journal.position(self.lake.app)
        return replace(self._done, upto=str(position) if position and position.ms else "")

    def _trim(self) -> None:
        """Drop from Redis what is in the lake and old enough; the newest entry of the lake stays.

        By that entry the next batch recognises, beside a Redis that counts nothing, that nothing is missing.
        """
        position = self.lake.journal.position(self.lake.app)
        if position is None or self.keep_hours is None:
            return
        oldest = self._stream.now_ms() - int(self.keep_hours * 3_600_000)
        upto = min(str(position), f"{oldest}-0", key=parts) if self.keep_hours else str(position)
        if last := self._stream.last_upto(upto):
            gone = self._stream.trim(last)
            self._done = replace(self._done, trimmed=self._done.trimmed + gone)


def bring(
    numbers: Iterator[pa.RecordBatch],
    wanted: Wanted,
    spans: list[tuple[str, str]],
    app: str,
    table: tuple[str, tuple[str, ...]],
) -> Iterator[pa.RecordBatch]:
    """A task: read the spans of the journal that it was given, and write them into files."""

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                after, upto = spans[number]
                for chunk in wanted.stream().chunks(after, upto, wanted.fetch):
                    yield chunk.append_column("app", pa.repeat(pa.scalar(app), chunk.num_rows))

    return sink.told(sink.write(rows(), *table))


def clipped(entry: str) -> tuple[int, int]:
    """Return an id as a position holds it. A stream that ends beyond takes no entry any more."""
    ms, seq = parts(entry)
    return min(ms, LARGEST - 1), min(seq, LARGEST - 1)


def account(
    before: Position, upto: tuple[int, int], added: int, rows: int, stream: Stream
) -> tuple[Position, Gap | None]:
    """Return where the lake is after a batch, and what is missing in it, as far as Redis can tell.

    Args:
        before: where it was.
        upto: id of the last entry of the batch's range.
        added: entries ever added to the stream up to there; UNKNOWN where Redis cannot tell, or where that is
            not the stream's end.
        rows: entries in the batch.
    """
    after = replace(before, ms=upto[0], seq=upto[1], since=before.since + rows)
    if added == UNKNOWN and before.added != UNKNOWN and stream.tip().added != UNKNOWN:
        return after, None  # not at the end of the stream: a later batch will tell
    after = replace(after, added=added, since=0)
    begin = (before.ms, before.seq)
    if upto < begin:
        why = "the stream was replaced: it ends before what is in the lake, and is read from its end on"
        return replace(after, epoch=before.epoch + 1), Gap(str(before), str(after), None, why)
    if added != UNKNOWN and before.added != UNKNOWN:
        return after, _counted(before, after, before.since + rows)
    if begin != (0, 0) and not stream.last_upto(str(before)):
        return after, Gap(str(before), str(after), None, _TRIMMED)
    return after, None


def _counted(before: Position, after: Position, found: int) -> Gap | None:
    expected = after.added - before.added
    if expected < 0:
        why = "the stream was replaced: fewer entries were ever added to it than had been before"
        return Gap(str(before), str(after), None, why)
    return Gap(str(before), str(after), expected - found, _TRIMMED) if expected > found else None


def whose(wanted: Wanted) -> tuple[str, str]:
    """Return the name of the app whose journal it is, and what tells this journal from any other.

    Both are written into the ledger by the app's workers; the namespace stands for a name where none has yet.
    """
    keys, sentinel = Keys(wanted.namespace), {"master_name": wanted.master_name}
    opened = open_redis(wanted.url, sentinel, key=keys.prefix)
    with opened as client, clear_errors("reading the ledger"):
        row: Any = client.hmget(keys.meta, ("app", "broker", "secret"))
    app, *rest = ((value or b"").decode() for value in row)
    name = wanted.app_name or app or wanted.namespace
    return name, hashlib.sha256("\n".join((app, *rest, keys.journal)).encode()).hexdigest()[:16]
