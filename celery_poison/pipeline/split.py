"""The journal, split: healthy runs, of which tasks make rows themselves, and the rest, which is for Spark.

Nine in ten of all rows that `tables` writes need nothing but their own entry. They pass from Parquet to
Parquet within a task, as in ``direct``: what comes to the driver is the names of files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.types import StructType

from celery_poison.pipeline import healthy, tables
from celery_poison.pipeline.healthy import Piece, Written
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.schema import JOURNAL

#: Of a journal's file, what a task takes at a time.
_SHARE = 32 << 20
#: More troubles than this are too many to be kept in mind by every task.
_MOST = 64 << 20

_KINDS = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.string()),
}


@dataclass(frozen=True)
class Split:
    """What tasks made of a journal.

    Attributes:
        rest: the entries that still have to be made into rows, as ``schema.JOURNAL`` without what no table
            asks for.
        files: table -> files with its other rows.
    """

    rest: Any
    files: dict[str, list[str]]


def split(lake: Lake, journal: Any, into: str) -> Split | None:
    """Let tasks write what they can below ``into``; None where all is for Spark."""
    if not lake.tasks_write or not hasattr(lake.session, "_jvm"):
        return None
    run = partial(_run, lake.session, _shares(journal.inputFiles()))
    found = run(partial(healthy.find_troubles, into=f"{into}/troubles"))
    if found is None:
        return None
    troubles = [each.troubles for each in found if each.troubles]
    if sum(map(os.path.getsize, troubles)) > _MOST:
        return None
    empty = lake.session.createDataFrame([], JOURNAL)
    made = run(
        partial(
            healthy.make_rows,
            into=f"{into}/rows",
            troubles=troubles,
            attempts=_in_arrow(tables.attempts(empty).drop("end").schema),
            messages=_in_arrow(tables.messages(empty).schema),
        )
    )
    if made is None:
        return None
    rest = [each.rest for each in made if each.rest]
    schema = StructType([JOURNAL[name] for name in healthy.NEEDED])
    read = lake.session.read.schema(schema)
    return Split(
        rest=read.parquet(*rest) if rest else lake.session.createDataFrame([], schema),
        files={
            "attempts": [each.attempts for each in made if each.attempts],
            "messages": [each.messages for each in made if each.messages],
        },
    )


def _run(session: Any, shares: Sequence[list[Piece]], work: Any) -> list[Written] | None:
    if not shares:
        return []
    done = session.sparkContext.parallelize(shares, len(shares)).map(work).collect()
    return None if None in done else done


def _in_arrow(schema: StructType) -> pa.Schema:
    return pa.schema([pa.field(f.name, _KINDS[f.dataType.simpleString()], f.nullable) for f in schema])


def _shares(uris: Sequence[str]) -> list[list[Piece]]:
    """Deal out files: large ones to several tasks, small ones together to one."""
    shares: list[list[Piece]] = []
    room = 0
    for uri in sorted(uris):
        path = unquote(urlsplit(uri).path)
        size = os.path.getsize(path)
        of = max(1, round(size / _SHARE))
        for first in range(of):
            if size // of > room:
                shares.append([])
                room = _SHARE
            shares[-1].append(Piece(path, first, of))
            room -= size // of
    return shares
