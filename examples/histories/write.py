"""Writes a history as Parquet, one file for each day, and the truth about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from celery_poison.pipeline import sink
from celery_poison.pipeline.ingest.entries import healthy as is_healthy
from celery_poison.pipeline.lake import GENERATED, Lake, Position
from celery_poison.pipeline.schema import LAKE
from examples.histories import healthy
from examples.histories.troubles import Troubles
from examples.histories.world import DAY_MS, World

#: The journal's fields in their order, as docs/journal.md has them; ``#`` marks numbers.
_FIELDS = (
    "event id mid token task queue worker #pid state cause outcome #deliveries #crashes #strikes #failures"
    " #runtime_ms incident actor note #payload_bytes #memory_kb fingerprint shape release evidence"
    " #enqueued_at #run_memory_kb"
)
_COLUMNS = [(word.lstrip("#"), pa.int64() if word[0] == "#" else pa.string()) for word in _FIELDS.split(" ")]
_RAW = pa.schema([("ms", pa.int64()), *_COLUMNS])
_STORED = pa.schema(
    [
        pa.field("entry", pa.string(), nullable=False),
        ("at", pa.timestamp("us", tz="UTC")),
        ("seq", pa.int64()),
        ("v", pa.int32()),
        *_COLUMNS,
        ("healthy", pa.bool_()),
        ("rest", pa.string()),
    ]
)
#: Whose rows they are in a lake.
_APP = "history"


def write(world: World, target: Path, progress: Callable[[str], None] = lambda line: None) -> int:
    """Write the lake into ``target``; return the number of entries.

    Raises:
        FileExistsError: there is something already.
    """
    target.mkdir(parents=True)
    return _each_day(world, target, partial(_write_day, world, target), progress)


def _each_day(
    world: World, truth_in: Path, write_day: Callable[[pa.Table, int], None], progress: Callable[[str], None]
) -> int:
    troubles = Troubles(world)
    by_day: dict[int, list[dict[str, Any]]] = {}
    for entry in troubles.entries():
        by_day.setdefault((entry["ms"] - world.start_ms) // DAY_MS, []).append(entry)
    total = 0
    for number in range(max(world.days, max(by_day) + 1)):
        rows = world.attempts // world.days if number < world.days else 0
        calm = [_fitted(healthy.day(world, number, rows))] if rows else []
        trouble = pa.Table.from_pylist(by_day.get(number, []), schema=_RAW)
        table = _stored(pa.concat_tables([*calm, trouble]))
        total += table.num_rows
        write_day(table, number)
        progress(f"day {number + 1}: {total:,} entries")
    truth = {kind: sorted(keys) for kind, keys in troubles.truth.items()}
    tainted = sorted(troubles.tainted)
    about = {"culprits": truth, "tainted": tainted, "convicted": troubles.convicted, "entries": total}
    (truth_in / "_truth.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    return total


def write_lake(world: World, root: Path, progress: Callable[[str], None] = lambda line: None) -> int:
    """Write a whole lake below ``root``, a commit for each day, beside ``_truth.json``; else as `write`.

    It is to be read: no journal belongs to it, as it says, and nothing is ingested into it.
    """
    root.mkdir(parents=True)
    lake = Lake(None, str(root), _APP)
    lake.journal.create(LAKE, GENERATED)

    def write_day(table: pa.Table, number: int) -> None:
        day = (world.start + timedelta(days=number)).date()
        table = table.append_column("date", pa.repeat(pa.scalar(day), table.num_rows))
        table = table.append_column("app", pa.repeat(pa.scalar(_APP), table.num_rows))
        files = sink.write(iter(table.to_batches(131_072)), lake.journal.uri, lake.journal.partitions)
        end = world.start_ms + (number + 1) * DAY_MS - 1
        lake.journal.commit(list(files), _APP, Position(end, 2**40))

    return _each_day(world, root, write_day, progress)


def _fitted(table: pa.Table) -> pa.Table:
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in _RAW
    ]
    return pa.Table.from_arrays(columns, schema=_RAW)


def _stored(raw: pa.Table) -> pa.Table:
    raw = raw.take(pc.sort_indices(raw["ms"]))
    seq = pa.array(range(raw.num_rows), pa.int64())
    ms = raw["ms"].combine_chunks()
    entry = pc.binary_join_element_wise(ms.cast(pa.string()), seq.cast(pa.string()), "-")
    told = {
        "entry": entry,
        "at": pc.multiply(ms, 1000).cast(pa.timestamp("us", tz="UTC")),
        "seq": seq,
        "v": pa.repeat(3, raw.num_rows),
        "healthy": is_healthy(
            pa.repeat(pa.scalar(3, pa.int32()), raw.num_rows), raw["event"], raw["outcome"]
        ),
        "rest": pa.nulls(raw.num_rows, pa.string()),
    }
    columns = [(told.get(f.name) if f.name in told else raw[f.name]) for f in _STORED]
    return pa.Table.from_arrays(
        [_as(column, f.type) for column, f in zip(columns, _STORED, strict=True)], schema=_STORED
    )


def _as(column: Any, kind: pa.DataType) -> Any:
    return column if column.type == kind else column.cast(kind)


def _write_day(world: World, target: Path, table: pa.Table, number: int) -> None:
    date = (world.start + timedelta(days=number)).date()
    place = target / f"date={date.isoformat()}"
    place.mkdir()
    pq.write_table(table, place / "part-0.parquet", compression="snappy")
