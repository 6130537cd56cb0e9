"""What a task counts in a piece of the stored ``attempts``: see ``survey``.

What the functions of ``tables`` make with Spark is made once more with Arrow: rows that pass through Java
only to be counted cost far more. A test holds both against each other.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from math import ceil
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from celery_poison.pipeline.tables.kin import KIN, LARGE
from celery_poison.pipeline.tables.tallies import KEYS
from celery_poison.pipeline.tables.usual import MEASURES

#: Of a task's runs in one chunk, so many tell the median of all.
POINTS = 250
#: Columns of few values, which are read as numbers of a dictionary.
WORDS = ("outcome", "proof", "task", "shape", "host", "release", "blame", "cause")
_NUMBERS = ("runtime_ms", "memory_kb", "payload_bytes")
_COLUMNS = tuple(dict.fromkeys(("end", *WORDS, *KIN, *_NUMBERS, "date")))
_WORD = pa.dictionary(pa.int32(), pa.string())
_TYPES = {
    **dict.fromkeys(_COLUMNS, pa.string()),
    **dict.fromkeys(("end", *WORDS), _WORD),
    **dict.fromkeys((*_NUMBERS, "seq"), pa.int64()),
    **dict.fromkeys(("started_at", "ended_at"), pa.timestamp("us", tz="UTC")),
    "date": pa.date32(),
}


@dataclass(frozen=True)
class Piece:
    """Row groups of one file, and the ``end`` that its directory says."""

    path: str
    end: str
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """All attempts from one day on, and before another; None is no bound."""

    since: date | None
    until: date | None
    pieces: tuple[Piece, ...]


def count(chunk: Chunk, into: str, ids: pa.Array, fingerprints: pa.Array) -> dict[str, str]:
    """Write what is asked of a chunk below ``into``.

    Args:
        ids, fingerprints: those with a trouble, and those with a death.

    Returns:
        Table -> file.
    """
    tallied, kin, daily = [], [], []
    for rows in _read(chunk):
        tallied.append(_tallies(rows))
        akin = pc.or_(pc.is_in(rows["id"], ids), pc.is_in(rows["fingerprint"], fingerprints))
        large = pc.fill_null(pc.greater(rows["payload_bytes"], LARGE), False)
        kin.append(rows.select(KIN).filter(pc.or_(akin, large)))
        daily.append(rows.select(["date", "task", "end", "outcome", "proof", *_NUMBERS]))
    days = pa.concat_tables(daily).unify_dictionaries().combine_chunks()
    made = {
        "tallies": _merged(pa.concat_tables(tallied)),
        "kin": _plain(pa.concat_tables(kin)),
        "usual": _usual(days),
        "task_daily": _task_daily(days),
    }
    return {name: _write(table, f"{into}/{name}") for name, table in made.items()}


def alive(rows: pa.Table) -> Any:
    """Whether each attempt came to its own end, as ``tables.attempts.ended_alive``."""
    lost = _is(rows["outcome"], "lost")
    finished = pc.and_(_is(rows["end"], "finished"), pc.invert(lost))
    return pc.or_(finished, _is(rows["end"], "rolled_back"))


def _is(column: Any, word: str) -> Any:
    # Compared once for each word of the dictionary, and not for each row.
    chunk = column.chunk(0)
    same = pc.equal(chunk.dictionary, word)
    return pc.fill_null(same.take(chunk.indices), False)


def _read(chunk: Chunk) -> Iterator[pa.Table]:
    """Yield the rows of a chunk: each column is one array, and the first table is there even without any."""
    yield pa.Table.from_arrays([pa.nulls(0, _TYPES[name]) for name in _COLUMNS], names=list(_COLUMNS))
    for piece in chunk.pieces:
        with pq.ParquetFile(piece.path, read_dictionary=list(WORDS)) as file:
            there = set(file.schema_arrow.names)
            names = [name for name in _COLUMNS if name in there]
            for group in piece.groups:
                rows = file.read_row_group(group, columns=names, use_threads=False)
                yield _typed(_within(chunk, rows), piece.end)


def _within(chunk: Chunk, rows: pa.Table) -> pa.Table:
    days = rows["date"]
    span = pc.min_max(days).as_py()
    if chunk.since and span["min"] and span["min"] < chunk.since:
        rows = rows.filter(pc.greater_equal(rows["date"], chunk.since))
    if chunk.until and span["max"] and span["max"] >= chunk.until:
        rows = rows.filter(pc.less(rows["date"], chunk.until))
    return rows


def _typed(rows: pa.Table, end: str) -> pa.Table:
    columns = []
    for name in _COLUMNS:
        kind = _TYPES[name]
        if name == "end":
            indices = pa.repeat(pa.scalar(0, pa.int32()), len(rows))
            column = pa.DictionaryArray.from_arrays(indices, pa.array([end]))
        else:
            column = rows[name].cast(kind).combine_chunks()
        columns.append(pa.chunked_array([column], kind))
    return pa.Table.from_arrays(columns, names=list(_COLUMNS))


def _tallies(rows: pa.Table) -> pa.Table:
    columns = {name: rows[name] for name in KEYS if name != "size"}
    columns["size"] = _decade(rows["payload_bytes"])
    columns |= {name: rows[name] for name in ("fingerprint", "ended_at", "date")}
    found = _grouped(
        pa.table(columns),
        KEYS,
        [
            ([], "count_all"),
            ("fingerprint", "count"),
            ("ended_at", "min"),
            ("ended_at", "max"),
            ("date", "max"),
        ],
    )
    return found.rename_columns([*KEYS, "n", "fingerprints", "since", "until", "date"])


def _merged(tallied: pa.Table) -> pa.Table:
    sums = [("n", "sum"), ("fingerprints", "sum"), ("since", "min"), ("until", "max"), ("date", "max")]
    found = tallied.group_by(list(KEYS), use_threads=False).aggregate(sums)
    return found.select([*KEYS, *(f"{name}_{how}" for name, how in sums)]).rename_columns(
        tallied.column_names
    )


def _decade(size: Any) -> Any:
    number = pa.repeat(pa.scalar(0, pa.int32()), len(size))
    for power in range(3, 9):
        number = pc.add(number, pc.fill_null(pc.greater_equal(size, 10**power), False).cast(pa.int32()))
    return pc.if_else(pc.is_valid(size), number, None)


def _grouped(rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Any]) -> pa.Table:
    """Group by numbers of words, which is far cheaper than by words; return words again."""
    numbers, words = rows, {}
    for name in keys:
        if rows.schema.field(name).type == _WORD:
            chunk = rows[name].chunk(0)
            words[name] = chunk.dictionary
            numbers = numbers.set_column(numbers.column_names.index(name), name, chunk.indices)
    found = numbers.group_by(list(keys), use_threads=False).aggregate(list(aggregates))
    for name, dictionary in words.items():
        place = found.column_names.index(name)
        found = found.set_column(place, name, dictionary.take(found[name].combine_chunks()))
    order = [*keys, *(name for name in found.column_names if name not in keys)]
    return found.select(order)


def _task_daily(days: pa.Table) -> pa.Table:
    lists = [("runtime_ms", "list"), ("payload_bytes", "list")]
    kinds = {
        "alive": alive(days),
        "failures": _is(days["outcome"], "failure"),
        "retries": _is(days["outcome"], "retry"),
        "deaths": _is(days["end"], "crashed"),
        "proven": _is(days["proof"], "proven"),
        "interrupted": _is(days["end"], "interrupted"),
        "rolled_back": _is(days["end"], "rolled_back"),
    }
    rows = days.select(["date", "task", *_NUMBERS])
    for name, column in kinds.items():
        rows = rows.append_column(name, column.cast(pa.int64()))
    sums = [(name, "sum") for name in kinds]
    found = _grouped(rows, ("date", "task"), [([], "count_all"), *sums, ("memory_kb", "max"), *lists])
    runtime = _ranked(found["runtime_ms_list"], (0.5, 0.95))
    (payload,) = _ranked(found["payload_bytes_list"], (0.95,))
    return pa.table(
        {
            "date": found["date"],
            "task": found["task"],
            "attempts": found["count_all"],
            **{name: found[f"{name}_sum"] for name in kinds},
            "runtime_p50_ms": runtime[0],
            "runtime_p95_ms": runtime[1],
            "memory_max_kb": found["memory_kb_max"],
            "payload_p95_bytes": payload,
        }
    )


def _ranked(lists: Any, parts: Sequence[float]) -> list[pa.Array]:
    """Return for each part the least value of each list that so many of its values do not exceed."""
    found: list[list[int | None]] = []
    for values in _known(lists):
        ranks = [max(1, ceil(part * len(values))) - 1 for part in parts]
        found.append(_at(values, ranks) if len(values) else [None] * len(parts))
    return [pa.array([row[n] for row in found], pa.int64()) for n in range(len(parts))]


def _known(lists: Any) -> Iterator[pa.Array]:
    for chunk in lists.chunks:
        for each in chunk:
            yield each.values.drop_null()


def _at(values: pa.Array, ranks: Sequence[int]) -> list[int | None]:
    if len(values) == 1:
        return [values[0].as_py()] * len(ranks)
    # By nth_element, in place of sorting all. The nearest rank is the rank itself.
    wanted = [rank / (len(values) - 1) for rank in ranks]
    told: list[int | None] = pc.quantile(values, wanted, interpolation="nearest").to_pylist()
    return told


def _usual(days: pa.Table) -> pa.Table:
    """Return ``tables.usual`` of a chunk: of many runs a few, each of which stands for several."""
    rows = days.filter(alive(days)).combine_chunks().select(["task", *_NUMBERS])
    found = _grouped(rows, ("task",), [(column, "list") for column in MEASURES.values()])
    parts = []
    for measure, column in MEASURES.items():
        for task, values in zip(found["task"], _known(found[f"{column}_list"]), strict=True):
            if not len(values):
                continue
            few, each = _thinned(values)
            names = [pa.repeat(pa.scalar(word, pa.string()), len(few)) for word in (task.as_py(), measure)]
            parts.append(
                pa.table([*names, few.cast(pa.int64()), each], names=["task", "measure", "value", "n"])
            )
    schema = pa.schema(
        [("task", pa.string()), ("measure", pa.string()), ("value", pa.int64()), ("n", pa.int64())]
    )
    return pa.concat_tables([schema.empty_table(), *parts])


def _thinned(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return at most :data:`POINTS` of the values, evenly by rank, and for how many of them each stands."""
    count = min(len(values), POINTS)
    cuts = [len(values) * n // count for n in range(count + 1)]
    each = pa.array([high - low for low, high in pairwise(cuts)], pa.int64())
    if len(values) == count:
        return values, each
    return pa.array(_at(values, [(low + high - 1) // 2 for low, high in pairwise(cuts)]), pa.int64()), each


def _plain(rows: pa.Table) -> pa.Table:
    for place, field in enumerate(rows.schema):
        if field.type == _WORD:
            rows = rows.set_column(place, field.name, rows[field.name].cast(pa.string()))
    return rows


def _write(rows: pa.Table, into: str) -> str:
    os.makedirs(into, exist_ok=True)
    path = f"{into}/part-{uuid.uuid4()}.zstd.parquet"
    pq.write_table(rows, path, compression="zstd", store_schema=False)
    return path
