"""Spark's tasks write Parquet files under their final names; a commit makes them part of a Delta table.

A file counts when a commit names it. What a killed, repeated or forgotten task left behind is named by none:
no reader sees it, and ``pipeline maintain`` removes it.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from celery_poison.pipeline.session import has_tasks

#: A row group is written out when it has so many rows; a file is closed when it has so many.
_ROWS, _MOST_ROWS = 131_072, 4_000_000
#: Files of 1.4 MB were read faster whole than by columns, files of 7 MB were not.
_SMALL = 2 * 2**20
#: Nearly every row has another value here, so that a dictionary of them would only cost.
_UNIQUE = frozenset({"entry", "seq", "id", "mid", "token", "started_at", "ended_at", "first_at", "last_at"})
_TOLD = "path string, size bigint, rows bigint, parts string, stats string"
_KINDS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "array<string>": pa.list_(pa.string()),
}


@dataclass(frozen=True)
class Written:
    """A file that a task wrote and closed.

    Attributes:
        path: below the table's directory.
        size: in bytes.
        parts: partition column -> its value as text, or None.
        stats: what Delta's log tells of its columns, as JSON, so that readers can leave it out.
    """

    path: str
    size: int
    rows: int
    parts: Mapping[str, str | None]
    stats: str = ""

    def action(self) -> Any:
        """Return it as what a commit adds."""
        from deltalake.transaction import AddAction

        stats = self.stats or json.dumps({"numRecords": self.rows})
        return AddAction(self.path, self.size, self.parts, int(time.time() * 1000), True, stats)


#: What Spark's tasks, or this process, make of rows.
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
#: Rows that name files.
Files = Sequence[tuple[Any, ...]]


def is_local(uri: str) -> bool:
    """Return whether a table lies in a directory, which every process must then see by the same path."""
    return "://" not in uri or uri.startswith("file:")


def filesystem(uri: str) -> fs.FileSystem:
    """Return the directory of a table, or what is below its URL, as a file system.

    Keys of object stores are taken from the environment, as ``deltalake`` does everywhere.
    """
    if is_local(uri):
        return fs.SubTreeFileSystem(uri, fs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(uri))


def opened(place: fs.FileSystem, path: str) -> pa.NativeFile:
    """Open a file that a table's log names; of a store a small one whole, by one answer in place of five."""
    source = place.open_input_file(unquote(path))
    is_small = isinstance(place, fs.PyFileSystem) and source.size() <= _SMALL
    return pa.BufferReader(source.read()) if is_small else source


def arrow_schema(schema: StructType | str) -> pa.Schema:
    """Return a schema of Spark's, or its words, as one of Arrow's."""
    if isinstance(schema, str):
        return pa.schema((name, _KINDS[kind]) for name, kind in map(str.split, schema.split(", ")))
    return pa.schema([pa.field(each.name, _KINDS[each.dataType.simpleString()]) for each in schema])


def written(frame: Any, uri: str, partitions: Sequence[str]) -> list[Written]:
    """Let tasks write a DataFrame below a table's URI; return the files, which do not count yet.

    An Arrow table, which is small, this process writes itself.
    """
    if isinstance(frame, pa.Table):
        return write(iter(frame.to_batches()), uri, partitions)
    schema = arrow_schema(frame.schema)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return told(write((batch.cast(schema) for batch in batches), uri, partitions))

    return tell(frame, task)


def told(files: Iterable[Written]) -> Iterator[pa.RecordBatch]:
    """Yield files in the form in which they go from a task to the driver."""
    for file in files:
        yield pa.RecordBatch.from_pylist([{**asdict(file), "parts": json.dumps(dict(file.parts))}])


def tell(rows: Any, task: Task) -> list[Written]:
    """Run a task that yields :func:`told` over a DataFrame; over few rows in this process."""
    if has_tasks(rows.sparkSession):
        found = rows.mapInArrow(task, _TOLD).toArrow().to_pylist()
    else:
        found = [row for batch in task(iter(rows.toArrow().to_batches())) for row in batch.to_pylist()]
    return [Written(**row | {"parts": json.loads(row["parts"])}) for row in found]


def spread(session: Any, files: Files, columns: str, task: Task, schema: StructType | str) -> Any:
    """Return what a task makes of rows that name files, as a DataFrame; each of Spark's tasks gets some.

    Where the journal is small this process is the only task.
    """
    if has_tasks(session):
        return _by_tasks(session, files, columns, task, schema)
    return session.createDataFrame(_here(files, columns, task, schema).combine_chunks(), schema)


def gathered(session: Any, files: Files, columns: str, task: Task, schema: str) -> pa.Table:
    """Return what :func:`spread` does, in this process."""
    if has_tasks(session):
        return _by_tasks(session, files, columns, task, schema).toArrow()
    return _here(files, columns, task, schema)


def _by_tasks(session: Any, files: Files, columns: str, task: Task, schema: StructType | str) -> Any:
    # A task opens a store once, for all of its files.
    many = min(len(files), int(session.conf.get("spark.sql.shuffle.partitions")))
    return session.createDataFrame(files, columns).repartition(many).mapInArrow(task, schema)


def _here(files: Files, columns: str, task: Task, schema: StructType | str) -> pa.Table:
    kinds, kind = arrow_schema(columns), arrow_schema(schema)
    values = (
        pa.array(column, each.type) for column, each in zip(zip(*files, strict=True), kinds, strict=True)
    )
    batch = pa.RecordBatch.from_arrays([*values], schema=kinds)
    return pa.Table.from_batches((each.cast(kind) for each in task(iter([batch]))), kind)


def write(batches: Iterator[pa.RecordBatch], uri: str, partitions: Sequence[str]) -> list[Written]:
    """Write rows into files, one or more for each combination of the partition columns' values."""
    first = next(batches, None)
    if first is None:
        return []
    schema, written = first.schema, list[Any]()
    kind = ds.ParquetFileFormat()
    apart = ds.partitioning(pa.schema([schema.field(name) for name in partitions]), flavor="hive")
    ds.write_dataset(
        chain([first], batches),
        "",
        schema=schema,
        filesystem=filesystem(uri),
        format=kind,
        file_options=kind.make_write_options(
            compression="zstd",
            use_dictionary=[name for name in schema.names if name not in _UNIQUE],
            write_page_checksum=True,
        ),
        partitioning=apart,
        basename_template=f"part-{uuid.uuid4()}-{{i}}.zstd.parquet",
        existing_data_behavior="overwrite_or_ignore",
        min_rows_per_group=_ROWS,
        max_rows_per_group=_ROWS,
        max_rows_per_file=_MOST_ROWS,
        use_threads=False,  # another task has the other processor
        file_visitor=written.append,
    )
    return [
        Written(
            each.path,
            each.size,
            each.metadata.num_rows,
            {n: _text(v) for n, v in ds.get_partition_keys(apart.parse(each.path)).items()},
            _stats(each.metadata),
        )
        for each in written
    ]


def _stats(metadata: pq.FileMetaData) -> str:
    """Return the ends of each column of times, days or numbers of a file; of all, how many are null."""
    columns: dict[str, list[Any]] = {}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(metadata.num_columns)):
            columns.setdefault(column.path_in_schema, []).append(column.statistics)
    told: dict[str, dict[str, Any]] = {name: {} for name in ("minValues", "maxValues", "nullCount")}
    for name, found in columns.items():
        if "." in name or any(each is None or not each.has_null_count for each in found):
            continue
        told["nullCount"][name] = sum(each.null_count for each in found)
        known = [each for each in found if each.num_values]
        if known and all(each.has_min_max for each in known):
            ends = _in_log(min(each.min for each in known)), _in_log(max(each.max for each in known), 999)
            if None not in ends:
                told["minValues"][name], told["maxValues"][name] = ends
    return json.dumps({"numRecords": metadata.num_rows, **told})


def _in_log(value: Any, more: int = 0) -> Any:
    """Return a value as Delta's log has it, a time in milliseconds, so many microseconds later; else None."""
    if isinstance(value, datetime):
        later = value + timedelta(microseconds=more)
        return later.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value) if isinstance(value, date) else value if type(value) is int else None


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def read(
    session: Any, uri: str, files: Sequence[tuple[str, str]], schema: StructType, columns: Sequence[str] = ()
) -> Any:
    """Return a table of an object store as a DataFrame, read by tasks: Spark itself needs no connector.

    Args:
        files: what :func:`listed` told of those that are read.
        columns: that are read, the others are null; empty: all.
    """
    # What is not asked for does not go through the store. All rows are too many for this process.
    wanted = StructType([each for each in schema if not columns or each.name in columns])
    task = partial(_read, uri=uri, schema=arrow_schema(wanted), columns=list(columns) or None)
    nulls = {each.name: F.lit(None).cast(each.dataType) for each in schema if each.name not in wanted.names}
    rows = _by_tasks(session, files, "path string, parts string", task, wanted)
    return rows.withColumns(nulls).select(*schema.names)


def read_here(session: Any, uri: str, files: Files, schema: StructType) -> Any:
    """Return the few rows of a table as a DataFrame that this process reads."""
    task = partial(_read, uri=uri, schema=arrow_schema(schema), columns=None)
    return spread(session, files, "path string, parts string", task, schema)


def _read(
    files: Iterator[pa.RecordBatch], uri: str, schema: pa.Schema, columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    place = filesystem(uri)
    for batch in files:
        for file in batch.to_pylist():
            parts = json.loads(file["parts"])
            with pq.ParquetFile(opened(place, file["path"])) as source:
                for rows in source.iter_batches(65_536, columns=columns):
                    yield completed(rows, parts, schema)


def listed(delta: Any, uris: Sequence[str]) -> list[tuple[str, str]]:
    """Return of files of a table the path below it and, as JSON, the values of their partition columns."""
    names = delta.metadata().partition_columns
    paths = {"/".join(uri.rsplit("/", len(names) + 1)[-len(names) - 1 :]) for uri in uris}
    return [
        (each["path"], json.dumps({name: _text(each[f"partition.{name}"]) for name in names}))
        for each in pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        if each["path"] in paths
    ]


def rows_of(delta: Any, uris: Sequence[str]) -> int:
    """Return how many rows some files of a table have."""
    names = {uri.rsplit("/", 1)[-1] for uri in uris}
    files = pa.table(delta.get_add_actions()).select(["path", "num_records"]).to_pylist()
    return sum(each["num_records"] or 0 for each in files if each["path"].rsplit("/", 1)[-1] in names)


def within(delta: Any, column: str, values: Sequence[int]) -> bool:
    """Return whether a table's log tells that every row has one of some numbers that follow each other."""
    files = pa.table(delta.get_add_actions(flatten=True)).to_pydict()
    least, most, nulls = (files.get(f"{name}.{column}", [None]) for name in ("min", "max", "null_count"))
    return not any(nulls) and None not in nulls and {*least, *most} <= {*values}


def completed(rows: pa.RecordBatch, parts: Mapping[str, str | None], schema: pa.Schema) -> pa.RecordBatch:
    """Add the partition columns, and those that a newer release brought."""
    columns = []
    for field in schema:
        if field.name in rows.schema.names:
            columns.append(rows.column(field.name).cast(field.type))
        else:
            value = pa.scalar(parts.get(field.name), pa.string()).cast(field.type)
            columns.append(pa.repeat(value, rows.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def safe_name(app: str) -> str:
    """Return an app's name as it stands in the names of directories."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", app)


def check(session: Any, uri: str, delta: Any) -> list[tuple[str, int, str]]:
    """Let tasks read every value of a table; return path, rows and what is wrong of each damaged file."""
    actions = pa.table(delta.get_add_actions(flatten=True)).select(["path", "num_records"]).to_pylist()
    if not actions:
        return []
    files = [(each["path"], each["num_records"] or 0) for each in actions]
    told = "path string, rows bigint, why string"
    found = gathered(session, files, "path string, rows bigint", partial(_check, uri=uri), told)
    return [(row["path"], row["rows"], row["why"]) for row in found.to_pylist()]


def _check(files: Iterator[pa.RecordBatch], uri: str) -> Iterator[pa.RecordBatch]:
    place = filesystem(uri)
    for batch in files:
        for file in batch.to_pylist():
            try:
                with pq.ParquetFile(opened(place, file["path"]), page_checksum_verification=True) as source:
                    rows = sum(each.num_rows for each in source.iter_batches(65_536))
                why = "" if rows == file["rows"] else f"it holds {rows} rows"
            except (OSError, pa.ArrowException) as error:
                why = str(error).splitlines()[0]
            if why:
                yield pa.RecordBatch.from_pylist([{**file, "why": why}])


def plain(rows: pa.Table) -> pa.Table:
    """Return rows without views of text: ``deltalake`` writes and gives them, which Arrow cannot filter."""
    plain = [f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(plain))
