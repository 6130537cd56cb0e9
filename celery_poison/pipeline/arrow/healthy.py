"""Rows of ``attempts`` and ``messages`` that need no other entry, made by a task itself: see ``split``.

A run is healthy when it ended alive and nothing else in the journal has to do with it: nothing else about
its message, no other end of its start, no death beside it. Nearly all are. What tables.attempts and
tables.messages would make of such an entry is said here once more for Arrow, as no row passes through Java
then. All other entries are written as they are, for those functions.

A test holds both against each other over a hostile journal.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from celery_poison.pipeline.arrow import doubles
from celery_poison.pipeline.arrow.pieces import MANY, Piece, read
from celery_poison.pipeline.ingest.entries import ARROW
from celery_poison.pipeline.tables.attempts import FARTHEST_MS, LONGEST_MS

#: What tables are made of. ``v`` is looked at only to leave out what this release does not know.
NEEDED = tuple(name for name in ARROW.names if name not in ("entry", "v", "actor", "rest"))
_OF_TROUBLES = ("at", "event", "outcome", "mid", "token", "worker", "incident")
#: Values that hardly come twice, so that a dictionary of them would only cost.
_UNIQUE = frozenset({*MANY, "seq", "started_at", "ended_at", "first_at", "last_at"})


@dataclass(frozen=True)
class Written:
    """Files that a task wrote and closed; empty where it had no row for one.

    Attributes:
        troubles: what is known of entries that are not about a run that ended alive.
        mids, tokens: the hashes of all that are about one, for ``doubles``.
        rest: entries as they are.
        attempts, messages: rows of the tables.
    """

    troubles: str = ""
    mids: str = ""
    tokens: str = ""
    rest: str = ""
    attempts: str = ""
    messages: str = ""


@dataclass(frozen=True)
class Troubles:
    """What to know of the whole journal before a run can be called healthy.

    Attributes:
        paths: files that ``find_troubles`` wrote.
        mids, tokens: hashes of those that several runs have that ended alive.
    """

    paths: tuple[str, ...]
    mids: Any
    tokens: Any


def find_troubles(pieces: Sequence[Piece], into: str) -> Written | None:
    """Write down what ``Troubles`` are made of; None where a file is unreadable."""
    out = _File(into)
    seen: dict[str, list[Any]] = {"mid": [], "token": []}
    try:
        for rows in read(pieces, _OF_TROUBLES):
            alive = _alive(rows)
            out.add(_spelled(rows.filter(pc.invert(alive))))
            for name, found in seen.items():
                known = pc.and_(alive, pc.is_valid(rows[name])).to_numpy()
                found.append(doubles.hashes(rows[name].combine_chunks())[known])
    except ValueError:
        return None
    mids, tokens = (doubles.save(found, into) for found in seen.values())
    return Written(troubles=out.close(), mids=mids, tokens=tokens)


def make_rows(
    pieces: Sequence[Piece], into: str, troubles: Troubles, attempts: pa.Schema, messages: pa.Schema
) -> Written | None:
    """Write the rows of healthy runs in either table, and the rest of the journal; None as above."""
    apart = _Apart(troubles)
    files = {name: _File(into) for name in ("rest", "attempts", "messages")}
    try:
        for rows in read(pieces, NEEDED):
            healthy = pc.and_(_alive(rows), pc.invert(apart.concerned(rows)))
            files["rest"].add(_spelled(rows.filter(pc.invert(healthy))))
            rows = rows.filter(pc.and_(healthy, pc.is_valid(rows["at"])))
            files["attempts"].add(_attempts(_where(rows, "token"), attempts))
            files["messages"].add(_messages(_where(rows, "mid"), messages))
    except ValueError:
        return None
    return Written(**{name: file.close() for name, file in files.items()})


def _attempts(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    made = {"host": _hosts(rows), "started_at": _started(rows), "ended_at": rows["at"]}
    return _table(rows, made, schema)


def _messages(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    zero, one = (pa.repeat(pa.scalar(n, pa.int64()), len(rows)) for n in (0, 1))
    made = {"first_at": _started(rows), "last_at": rows["at"], "starts": one}
    made |= dict.fromkeys(("deaths", "put_back", "releases", "lost_ms"), zero)
    made["runtime_ms"] = _ran_ms(rows)
    made |= {name: pa.nulls(len(rows), pa.string()) for name in ("cause", "reason")}
    return _table(rows, made, schema)


def _table(rows: pa.Table, made: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Return columns made; else those of the journal; else nulls."""
    columns, fields = [], []
    for field in schema:
        column = made.get(field.name)
        if column is None and field.name in rows.column_names:
            column = rows[field.name]
        if column is None:
            column = pa.nulls(len(rows), field.type)
        columns.append(column)
        fields.append(field.with_type(column.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _hosts(rows: pa.Table) -> pa.ChunkedArray:
    """Return ``tables.attempts.host_of`` each worker."""
    words = rows["worker"].combine_chunks()
    hosts = [_host(worker) for worker in words.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(words.indices, pa.array(hosts, pa.string()))


def _host(worker: str) -> str:
    node = worker.rpartition("/")[0] if "/" in worker else worker
    return node.rpartition("@")[2]


def _ran_ms(rows: pa.Table) -> Any:
    return pc.min_element_wise(pc.max_element_wise(rows["runtime_ms"], 0), FARTHEST_MS)


def _at_ms(rows: pa.Table) -> Any:
    return pc.divide(rows["at"].cast(pa.int64()), 1000)


def _started(rows: pa.Table) -> Any:
    ms = pc.subtract(_at_ms(rows), _ran_ms(rows))
    return pc.multiply(ms, 1000).cast(ARROW.field("at").type)


def _alive(rows: pa.Table) -> Any:
    lost = pc.fill_null(pc.equal(rows["outcome"].cast(pa.string()), "lost"), False)
    finished = pc.fill_null(pc.equal(rows["event"].cast(pa.string()), "finished"), False)
    return pc.and_(finished, pc.invert(lost))


def _spelled(rows: pa.Table) -> pa.Table:
    """Return few rows without the dictionaries of the many that they were among."""
    return rows.cast(pa.schema([ARROW.field(name) for name in rows.column_names]))


def _where(rows: pa.Table, known: str) -> pa.Table:
    return rows if not rows[known].null_count else rows.filter(pc.is_valid(rows[known]))


class _Apart:
    """What the rest of the journal has to do with a run that ended alive."""

    def __init__(self, known: Troubles) -> None:
        self._known = known
        read = [pq.read_table(path, use_threads=False) for path in known.paths]
        troubles = pa.concat_tables(read) if read else _empty(_OF_TROUBLES)
        self._mids = pc.drop_null(troubles["mid"].unique())
        self._tokens = pc.drop_null(troubles["token"].unique())
        event = troubles["event"].cast(pa.string())
        alone = pc.and_(pc.equal(event, "crashed"), pc.is_null(troubles["incident"]))
        deaths = troubles.select(["worker", "at"]).filter(alone).drop_null()
        self._workers = deaths["worker"].cast(pa.string()).unique()
        ms = _at_ms(deaths).to_numpy()
        self._times = np.unique(ms)
        self._keys = np.sort(self._key(self._worker(deaths), self._times.searchsorted(ms)))

    def concerned(self, rows: pa.Table) -> Any:
        of_message = pc.is_in(rows["mid"], self._mids)
        of_start = pc.is_in(rows["token"], self._tokens)
        others = self._beside_a_death(rows) | _is_in(rows["mid"], self._known.mids)
        others |= _is_in(rows["token"], self._known.tokens)
        return pc.or_(pc.or_(of_message, of_start), pa.array(others))

    def _beside_a_death(self, rows: pa.Table) -> Any:
        """Whether the worker of a run lost a process while it ran."""
        until = pc.fill_null(_at_ms(rows), 0).to_numpy()
        worker, since = self._worker(rows), until - np.minimum(_ran_ms(rows).to_numpy(), LONGEST_MS)
        low, high = self._times.searchsorted(since), self._times.searchsorted(until)
        beside = (worker >= 0) & (low < high)
        few = beside.nonzero()[0]  # some worker lost one: was it this one?
        worker, low, high = worker[few], low[few], high[few]
        first, end = (self._keys.searchsorted(self._key(worker, rank)) for rank in (low, high))
        beside[few] = first < end
        return beside

    def _worker(self, rows: pa.Table) -> Any:
        found = pc.index_in(rows["worker"].cast(pa.string()), self._workers)
        return pc.fill_null(found, -1).to_numpy().astype(np.int64)

    def _key(self, worker: Any, rank: Any) -> Any:
        return worker * (len(self._times) + 1) + rank


def _is_in(words: pa.ChunkedArray, known: Any) -> Any:
    if not len(known):
        return np.zeros(len(words), bool)
    return np.isin(doubles.hashes(words.combine_chunks()), known)


def _empty(names: Sequence[str]) -> pa.Table:
    return pa.schema([ARROW.field(name) for name in names]).empty_table()


class _File:
    """A file that comes to be with its first row."""

    def __init__(self, into: str) -> None:
        self._path = f"{into}/part-{uuid.uuid4()}.zstd.parquet"
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        if not len(rows):
            return
        if self._writer is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._path,
                rows.schema,
                compression="zstd",
                use_dictionary=[name for name in rows.column_names if name not in _UNIQUE],
                # The least and the greatest text of a file help nobody, and are not free.
                write_statistics=[f.name for f in rows.schema if pa.types.is_temporal(f.type)],
                store_schema=False,
            )
        self._writer.write_table(rows)

    def close(self) -> str:
        if self._writer is None:
            return ""
        self._writer.close()
        return self._path
