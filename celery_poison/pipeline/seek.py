"""Few rows of very many: those that have a key in common with what is new, and the company of troubles.

A join would read every column of every row. Here tasks read the columns of the keys alone, and whole rows
only where they found some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from celery_poison.pipeline import sink
from celery_poison.pipeline.lake import Filters, Lake, Position, Table, after
from celery_poison.pipeline.schema import JOURNAL, LAST_MS
from celery_poison.pipeline.tables.attempts import LONGEST_MS, is_lone_death
from celery_poison.pipeline.window import DAY_MS, day, first_ms

#: From the day of the newest known entry, less this, runs that ended alive are looked at again: what is new
#: may concern them.
LOOK_BACK_MS = DAY_MS
#: Nearly all runs share their words with many others.
_WORDS = ("event", "task", "queue", "worker", "state", "cause", "outcome", "shape", "release")

#: By column, the values that are looked for.
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class _Sought:
    """The aim of a task's search.

    Attributes:
        keys: of any row.
        since, before: further keys of rows after a position.
        moments: :func:`_places` of the deaths of single processes, sorted.
        deaths: their workers, the first of these times, and the range of them.
        had: entries that are known already.
    """

    keys: Keys
    since: Position | None = None
    before: Keys = field(default_factory=dict)
    moments: Any = ()
    deaths: tuple[Any, int, int] = (None, 0, 0)
    had: Any = None


def _values(column: Any) -> Any:
    return column.drop_null().unique()


def having(session: Any, table: Table, filters: Filters, wanted: Keys) -> Any:
    """Return the rows of a table that have one of some keys, as a DataFrame of ``schema.JOURNAL``."""
    return _sought(session, table, filters, _Sought(wanted))


def alive(lake: Lake, fingerprints: Any) -> Any:
    """Return how many runs of some fingerprints ended alive, in the whole journal: an Arrow table of both."""
    found = having(lake.session, lake.journal, _runs(lake), {"fingerprint": fingerprints})
    return found.groupBy("fingerprint").count().toArrow()


def company(lake: Lake, since: Position | None, died: Any, had: Any) -> Any:
    """Return the runs that ended alive and that a trouble concerns, as a DataFrame of ``schema.JOURNAL``.

    Those of a task id or a message that was in trouble; that bear a fingerprint which was in a death; that
    ran beside a process that died; and whose message ended alive once more on that day or the next.

    Args:
        since: return only what an entry after it makes known, looking :data:`LOOK_BACK_MS` back.
        died: fingerprints that were in a death up to there.
        had: entries that were returned before, since so long.
    """
    back = max(0, since.ms - LOOK_BACK_MS) if since else 0
    rest = lake.entries(Position(back) if since else None, healthy=False)
    told = rest.select(
        *("id", "mid"),
        F.when(F.col("event") == "crashed", F.col("fingerprint")).alias("fingerprint"),
        F.when(is_lone_death(), F.col("worker")).alias("worker"),
        F.unix_millis("at").alias("ms"),
        F.expr(after(since) if since else "true").alias("new"),
    ).toArrow()
    new = told.filter(told["new"])
    found = {name: _values(new[name]) for name in ("id", "mid", "fingerprint")}
    before = {name: _values(told[name]) for name in ("id", "mid")} if since else {}
    if since:
        dead = _values(died)
        before["fingerprint"] = pa.concat_arrays([dead, _values(told["fingerprint"])]).unique()
        first = pc.invert(pc.is_in(found["fingerprint"], value_set=dead))
        found["fingerprint"] = found["fingerprint"].filter(first)
    found["mid"] = pa.concat_arrays([found["mid"], _twice(lake, since)])
    alone = told.filter(told["worker"].is_valid())
    start, end = pc.min_max(alone["ms"]).as_py().values() if len(alone) else (0, 0)
    deaths = (_values(alone["worker"]), start, end - start)
    moments = np.sort(_places(alone["worker"], alone["ms"].to_numpy(), *deaths))
    sought = _Sought(found, since, before, moments, deaths, had)
    days = [("date", ">=", day(back))] if since else []
    return _sought(lake.session, lake.journal, [*_runs(lake), *days], sought)


def _runs(lake: Lake) -> list[tuple[str, str, Any]]:
    return [("app", "=", lake.app), ("healthy", "=", "true")]


def _twice(lake: Lake, since: Position | None) -> Any:
    """Return the messages that ended alive twice on one day or on two that follow each other."""
    days: dict[str, list[str]] = {}
    least = [("date", ">=", day(max(0, since.ms - DAY_MS)))] if since else []
    for path, parts in lake.journal.files([*_runs(lake), *least]):
        days.setdefault(json.loads(parts)["date"] or "", []).append(path)
    rows = [
        (paths, days.get(day(first_ms(name) - DAY_MS), []))
        for name, paths in days.items()
        if name and (since is None or name >= day(since.ms))
    ]
    if not rows:
        return pa.array([], pa.string())
    task = partial(_told_twice, uri=lake.journal.uri)
    columns = "own array<string>, before array<string>"
    return _values(sink.gathered(lake.session, rows, columns, task, "mid string")["mid"])


def _told_twice(days: Iterator[pa.RecordBatch], uri: str) -> Iterator[pa.RecordBatch]:
    place = sink.filesystem(uri)

    def mids(paths: list[str]) -> Any:
        tables = [sink.plain(pq.read_table(sink.opened(place, path), columns=["mid"])) for path in paths]
        return pa.concat_tables(tables)["mid"].drop_null() if tables else pa.chunked_array([], pa.string())

    for batch in days:
        for told in batch.to_pylist():
            own, before = mids(told["own"]), mids(told["before"])
            counts = pc.value_counts(own)
            twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
            later = own.filter(pc.is_in(own, value_set=before)).combine_chunks()
            yield pa.RecordBatch.from_arrays([pa.concat_arrays([twice, later])], ["mid"])


def _sought(session: Any, table: Table, filters: Filters, sought: _Sought) -> Any:
    files = table.files(filters)
    if not files:
        return session.createDataFrame([], JOURNAL)
    task = partial(_search, uri=table.uri, sought=sought)
    return sink.spread(session, files, "path string, parts string", task, JOURNAL)


def _search(files: Iterator[pa.RecordBatch], uri: str, sought: _Sought) -> Iterator[pa.RecordBatch]:
    place, schema = sink.filesystem(uri), sink.arrow_schema(JOURNAL)
    for batch in files:
        for file in batch.to_pylist():
            parts = json.loads(file["parts"])
            with pq.ParquetFile(sink.opened(place, file["path"]), read_dictionary=_WORDS) as opened:
                for rows in _found(opened, sought, parts["date"]):
                    yield from (sink.completed(each, parts, schema) for each in rows.to_batches())


def _found(opened: pq.ParquetFile, sought: _Sought, date: str | None) -> Iterator[pa.Table]:
    found, begin = reduce(pc.or_, _marks(opened, sought, date)), 0
    for number in range(opened.num_row_groups):
        mine = found.slice(begin, opened.metadata.row_group(number).num_rows)
        begin += len(mine)
        if pc.any(mine).as_py():
            rows = sink.plain(opened.read_row_group(number)).filter(mine)
            if sought.had is not None:
                rows = rows.filter(pc.invert(pc.is_in(rows["entry"], value_set=sought.had)))
            yield rows


def _marks(opened: pq.ParquetFile, sought: _Sought, date: str | None) -> Iterator[Any]:
    """Yield of each reason which rows of a file are sought for it.

    Of days before the last look it reads few columns. What ran beside a death ended after that look, the task
    id finds the runs of a message in trouble, and the journal tells a run twice within two days in a row.
    """
    since, new = sought.since, pa.repeat(pa.scalar(False), opened.metadata.num_rows)
    yield new
    age = first_ms(day(since.ms)) - first_ms(date) if since and date else 0
    if since and age <= 0:
        new = pc.fill_null(_after(opened.read(["at", "seq"]), since), False)
    before = sought.before if pc.any(new).as_py() else {}
    for name, values in sought.keys.items():
        if name == "mid" and age > DAY_MS:
            continue
        # The whole column at once: for each piece of it the values would be made ready anew.
        column = sink.plain(opened.read([name]))[name]
        yield pc.is_in(column, value_set=values)
        if name in before:
            yield pc.and_(new, pc.is_in(column, value_set=before[name]))
    if len(sought.moments) and age <= 0:
        yield _beside(sink.plain(opened.read(["worker", "at", "runtime_ms"])), sought)


def _beside(runs: pa.Table, sought: _Sought) -> Any:
    """Return which runs their worker had when one of its processes died."""
    until = pc.fill_null(runs["at"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()), 0)
    until = until.to_numpy()
    ran = np.clip(pc.fill_null(runs["runtime_ms"], 0).to_numpy(), 0, LONGEST_MS)
    first, last = (
        np.searchsorted(sought.moments, _places(runs["worker"], ms, *sought.deaths))
        for ms in (until - ran, until)
    )
    return pa.array(first < last)


def _places(worker: Any, ms: Any, workers: Any, start: int, span: int) -> Any:
    """Return workers and times as numbers that are in the order of both; workers of no interest are last."""
    numbers = pc.fill_null(pc.index_in(worker, value_set=workers), len(workers)).to_numpy()
    return numbers.astype(np.int64) * (span + 3) + np.clip(ms - start + 1, 0, span + 2)


def _after(rows: Any, position: Position) -> Any:
    moment = pa.scalar(min(position.ms, LAST_MS) * 1000, pa.timestamp("us", tz="UTC"))
    later = pc.and_(pc.equal(rows["at"], moment), pc.greater(rows["seq"], position.seq))
    return pc.or_(pc.greater(rows["at"], moment), later)
