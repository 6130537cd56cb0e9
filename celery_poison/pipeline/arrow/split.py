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

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from celery_poison.pipeline import tables
from celery_poison.pipeline.arrow import doubles, healthy, tasks
from celery_poison.pipeline.arrow.healthy import Troubles
from celery_poison.pipeline.arrow.pieces import Piece
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.schema import JOURNAL
from celery_poison.pipeline.together import together

#: Of a journal's file, what a task takes at a time.
_SHARE = 32 << 20
#: More bytes of troubles than this are too many to be kept in mind by every task.
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
    if not tasks.can_do_it(lake):
        return None
    os.makedirs(into, exist_ok=True)
    session, shares = lake.session, _shares(journal.inputFiles())
    troubles, schemas = together(
        lambda: _troubles(session, shares, into), lambda: _schemas(session.createDataFrame([], JOURNAL))
    )
    if troubles is None:
        return None
    make = partial(healthy.make_rows, into=into, troubles=troubles, **schemas)
    made = tasks.done(session, shares, make)
    if None in made:
        return None
    rest = [each.rest for each in made if each.rest]
    schema = StructType([JOURNAL[name] for name in healthy.NEEDED])
    return Split(
        rest=session.read.schema(schema).parquet(*rest) if rest else session.createDataFrame([], schema),
        files={
            "attempts": [each.attempts for each in made if each.attempts],
            "messages": [each.messages for each in made if each.messages],
        },
    )


def _troubles(session: Any, shares: Sequence[list[Piece]], into: str) -> Troubles | None:
    """Return what to know of the whole journal; None where a file is unreadable, or it is too much."""
    found = tasks.done(session, shares, partial(healthy.find_troubles, into=into))
    if None in found:
        return None
    paths = tuple(each.troubles for each in found if each.troubles)
    mids, tokens = (_doubles(session, [getattr(each, kind) for each in found]) for kind in ("mids", "tokens"))
    if sum(map(os.path.getsize, paths)) + mids.nbytes + tokens.nbytes > _MOST:
        return None
    return Troubles(paths, mids, tokens)


def _doubles(session: Any, paths: Sequence[str]) -> Any:
    count = max(2, sum(map(os.path.getsize, paths)) // _SHARE)
    compare = partial(doubles.among, paths, of=count)
    found = tasks.done(session, range(count), compare) if paths else []
    return np.concatenate([np.zeros(0, np.uint64), *found])


def _schemas(journal: Any) -> dict[str, pa.Schema]:
    """Return what is in the files of each table."""
    attempts = tables.attempts(journal).drop("end")  # which their directory tells
    return {"attempts": _in_arrow(attempts.schema), "messages": _in_arrow(tables.messages(journal).schema)}


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
