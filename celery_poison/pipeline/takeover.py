"""A lake of an older release, whose format was our own: its entries come into a new one, once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from celery_poison.pipeline import sink
from celery_poison.pipeline.ingest.entries import healthy
from celery_poison.pipeline.ingest.ingest import whose
from celery_poison.pipeline.ingest.source import Wanted
from celery_poison.pipeline.lake import Gap, Lake, LakeError, Position
from celery_poison.pipeline.schema import LAKE

_NAME = re.compile(r"batch=(\d+)(?:-(\d+))?")


def take_over(lake: Lake, old: Path, options: Mapping[str, Any]) -> int:
    """Bring the entries of an old lake into a new one, in one commit; return how many.

    Ingest goes on from there: into a lake of the same journal, which ``url`` and ``namespace`` tell.

    Raises:
        LakeError: the new one has entries already, or the old one is damaged.
    """
    if lake.journal.exists and lake.apps():
        raise LakeError(f"{lake.root} has entries already: take the old lake over into a new one")
    manifests = _manifests(old)
    if not manifests:
        raise LakeError(f"{old} has no finished batch: it is no lake of an older release")
    identity = ""
    lake.app = options.get("app_name") or options.get("namespace") or "poison"
    if options.get("url"):
        asked = {name: str(options[name]) for name in ("url", "namespace", "app_name") if options.get(name)}
        lake.app, journal = whose(Wanted.from_options(asked), asked)
        identity = f"{lake.app} of {journal}"
    lake.journal.create(LAKE)
    files = list(sink.write(_rows(old, manifests, lake.app), lake.journal.uri, lake.journal.partitions))
    rows, promised = sum(file.rows for file in files), sum(each["rows"] for each in manifests)
    if rows != promised:
        raise LakeError(f"{old} holds {rows} entries where its batches promise {promised}: it is damaged")
    last = manifests[-1]
    ms, _, seq = last["upto"].partition("-")
    for gap in (Gap(**gap) for each in manifests for gap in each["gaps"]):
        lake.add_gap(gap)
    position = Position(int(ms), int(seq), last["base"], last["since"])
    lake.journal.commit(files, lake.app, position, {"taken over": str(old), "rows": rows}, identity=identity)
    return rows


def _manifests(old: Path) -> list[dict[str, Any]]:
    """Return what the batches that count say of themselves, in the order of the journal."""
    found = []
    for mark in Path(old, "journal").glob("batch=*/_SUCCESS"):
        named = _NAME.fullmatch(mark.parent.name)
        if named:
            told = json.loads(mark.read_text(encoding="utf-8"))
            if (told["first"], told["last"]) == (int(named[1]), int(named[2] or named[1])):
                found.append({**told, "place": mark.parent})
    counting: list[dict[str, Any]] = []
    for each in sorted(found, key=lambda told: (told["first"], -told["last"])):
        if not counting or each["first"] > counting[-1]["last"]:
            counting.append(each)
    return counting


def _rows(old: Path, manifests: list[dict[str, Any]], app: str) -> Iterator[pa.RecordBatch]:
    schema = sink.arrow_schema(LAKE)
    for told in manifests:
        for path in sorted(told["place"].glob("date=*/[!._]*.parquet")):
            day = path.parent.name.removeprefix("date=")
            date = None if day.startswith("__") else day
            with pq.ParquetFile(path) as file:
                for rows in file.iter_batches(131_072):
                    yield _completed(rows, date, app, schema)


def _completed(rows: pa.RecordBatch, date: str | None, app: str, schema: pa.Schema) -> pa.RecordBatch:
    count = rows.num_rows
    v, event, outcome = (rows.column(name) for name in ("v", "event", "outcome"))
    made = {
        "date": pa.repeat(pa.scalar(date).cast(pa.date32()), count),
        "app": pa.repeat(pa.scalar(app), count),
        "healthy": healthy(v.cast(pa.int32()), event, outcome),
    }
    names = rows.schema.names
    columns = [
        made[f.name]
        if f.name in made
        else rows.column(f.name)
        if f.name in names
        else pa.nulls(count, f.type)
        for f in schema
    ]
    columns = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
