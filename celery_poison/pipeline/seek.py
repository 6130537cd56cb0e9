"""Few rows of very many: those that have a key in common with what is new.

A join would read every column of every row. Here tasks read the columns of the keys alone, and whole rows
only where they found some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from celery_poison.pipeline import sink
from celery_poison.pipeline.lake import Lake, Position, Table, after, day
from celery_poison.pipeline.schema import JOURNAL, LAST_MS

#: Among all runs a second end of a message is looked for so far back only: it costs most.
AGAIN_MS = 24 * 3_600_000
_TIME = pa.timestamp("us", tz="UTC")
_MIDS = pa.schema([("at", _TIME), ("seq", pa.int64()), ("mid", pa.string())])

Filters = Sequence[tuple[str, str, Any]]
#: By column, the values that are looked for.
Keys = Mapping[str, Any]


def keys(rows: Any, *names: str) -> Keys:
    """Return the values of some columns of a DataFrame, which are few."""
    told = rows.select(*names).distinct().toArrow()
    return {name: told[name].drop_null().unique() for name in names}


def having(session: Any, table: Table, filters: Filters, wanted: Keys) -> Any:
    """Return the rows of a table that have one of some keys, as a DataFrame of ``schema.JOURNAL``."""
    return _sought(session, table, filters, partial(_search, table.uri, wanted, [], None))


def earlier(lake: Lake, since: Position, back_ms: int) -> Any:
    """Return the runs that ended alive up to a position and that an entry after it concerns.

    Those of a task id or a message that was in trouble after it; those whose fingerprint was in its first
    death; and of :data:`AGAIN_MS` those whose message ended alive again.

    Args:
        back_ms: how far before the position they are looked for.

    Returns:
        DataFrame: of ``schema.JOURNAL``.
    """
    wanted = {
        **keys(lake.entries(since, healthy=False), "id", "mid"),
        **keys(_first_deaths(lake).where(after(since)), "fingerprint"),
    }
    journal, runs = lake.journal, [("app", "=", lake.app), ("healthy", "=", "true")]
    new = [unquote(path) for path, _ in journal.files([*runs, ("date", ">=", day(since.ms))])]
    found = [
        _sought(
            lake.session,
            journal,
            [*runs, ("date", ">=", day(max(0, since.ms - back))), ("date", "<=", day(since.ms))],
            partial(_search, journal.uri, told, also, since),
        )
        for told, also, back in ((wanted, [], back_ms), ({}, new, AGAIN_MS))
    ]
    return found[0].unionByName(found[1]).dropDuplicates(["entry"])


def _first_deaths(lake: Lake) -> Any:
    died = lake.entries(healthy=False).where("event = 'crashed' and fingerprint is not null")
    first = died.groupBy("fingerprint").agg(F.min(F.struct("at", "seq")).alias("first"))
    return first.select("fingerprint", "first.*")


def _sought(session: Any, table: Table, filters: Filters, task: Any) -> Any:
    files = table.files(filters)
    if not files:
        return session.createDataFrame([], JOURNAL)
    many = min(len(files), int(session.conf.get("spark.sql.shuffle.partitions")))
    rows = session.createDataFrame(files, "path string, parts string").repartition(many)
    return rows.mapInArrow(task, JOURNAL)


def _search(
    uri: str, wanted: Keys, also: list[str], upto: Position | None, files: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task: look for keys, or for the messages that files ``also`` tell of after a position."""
    place, schema = sink.filesystem(uri), sink.arrow_schema(JOURNAL)
    if also and upto:
        mids = ds.dataset(also, _MIDS, format="parquet", filesystem=place).to_table(["mid"], _after(upto))
        wanted = {"mid": mids["mid"].drop_null()}
    for batch in files:
        for file in batch.to_pylist():
            parts = json.loads(file["parts"])
            with pq.ParquetFile(place.open_input_file(unquote(file["path"]))) as opened:
                for rows in _found(opened, wanted, upto):
                    yield from (sink.completed(each, parts, schema) for each in rows.to_batches())


def _found(opened: pq.ParquetFile, wanted: Keys, upto: Position | None) -> Iterator[pa.Table]:
    # The whole column at once: for each piece of it the values would be made ready anew.
    marks = [pc.is_in(opened.read([name])[name], values) for name, values in wanted.items() if len(values)]
    if not marks:
        return
    found, begin = marks[0], 0
    for each in marks[1:]:
        found = pc.or_(found, each)
    if upto:
        found = pc.and_(found, pc.less_equal(opened.read(["at"])["at"], _moment(upto)))
    for number in range(opened.num_row_groups):
        mine = found.slice(begin, opened.metadata.row_group(number).num_rows)
        begin += len(mine)
        if pc.any(mine).as_py():
            rows = opened.read_row_group(number).filter(mine)
            yield rows.filter(~_after(upto)) if upto else rows


def _moment(position: Position) -> Any:
    return pa.scalar(min(position.ms, LAST_MS) * 1000, _TIME)


def _after(position: Position) -> Any:
    at, moment = pc.field("at"), _moment(position)
    return (at > moment) | ((at == moment) & (pc.field("seq") > position.seq))
