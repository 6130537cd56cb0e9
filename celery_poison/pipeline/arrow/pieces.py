"""Pieces of the journal's files as Arrow tables, and the files that tasks write."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from celery_poison.pipeline.ingest.entries import ARROW
from celery_poison.pipeline.schema import VERSIONS

#: Rows that a task has in its hands at a time.
_ROWS = 131_072
#: Values that hardly come twice; the others are read, kept and written as numbers of a dictionary.
UNIQUE = frozenset({"token", "id", "mid", "seq", "started_at", "ended_at", "first_at", "last_at"})
_MANY = UNIQUE | {"entry", "fingerprint", "note", "evidence", "rest"}
_ALIKE = [field.name for field in ARROW if field.type == pa.string() and field.name not in _MANY]
_WORD = pa.dictionary(pa.int32(), pa.string())


class Unreadable(ValueError):
    """A file that is not what this module expects; Spark may know better."""


@dataclass(frozen=True)
class Piece:
    """Every ``of``-th row group of a file, from the ``first`` on."""

    path: str
    first: int = 0
    of: int = 1


def empty(names: Sequence[str]) -> pa.Table:
    """Return no rows with these columns of the journal."""
    return pa.schema([ARROW.field(name) for name in names]).empty_table()


def read(pieces: Sequence[Piece], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of pieces, with these columns; a file that cannot be opened is left out.

    Raises:
        Unreadable: a file is damaged farther in, or has other types.
    """
    for piece in pieces:
        try:
            there = set(pq.read_schema(piece.path).names)
            words = [name for name in _ALIKE if name in there]
            file = pq.ParquetFile(piece.path, read_dictionary=words, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            continue  # left out by Spark too, and told by the lake
        with file:
            day = _day(piece.path)
            try:
                for rows in _batches(file, piece, names):
                    yield _completed(rows, day, names)
            except (OSError, pa.ArrowException) as error:
                raise Unreadable(piece.path) from error


def _batches(file: pq.ParquetFile, piece: Piece, names: Sequence[str]) -> Iterator[pa.Table]:
    groups = list(range(piece.first, file.num_row_groups, piece.of))
    there = set(file.schema_arrow.names)
    columns = [name for name in ("v", *names) if name in there and name != "date"]
    for batch in file.iter_batches(_ROWS, row_groups=groups, columns=columns, use_threads=False):
        rows = pa.Table.from_batches([batch])
        known = pc.is_in(rows["v"], pa.array(VERSIONS, pa.int32()))
        yield rows if pc.all(known).as_py() else rows.filter(known)


def _completed(rows: pa.Table, day: date | None, names: Sequence[str]) -> pa.Table:
    """Return the columns asked for; what an old file has not is null."""
    columns = []
    for name in names:
        kind = _WORD if name in _ALIKE else ARROW.field(name).type
        if name == "date":
            column = pa.repeat(pa.scalar(day, kind), len(rows))
        elif name not in rows.column_names:
            column = pa.nulls(len(rows), kind)
        else:
            column = rows[name]
            if column.type != kind:
                raise Unreadable(f"{name} is {column.type}")
        columns.append(column)
    return pa.Table.from_arrays(columns, names=list(names))


def _day(path: str) -> date | None:
    """Return the date that Spark takes from a directory's name."""
    name, _, value = unquote(Path(path).parent.name).partition("=")
    if value == "__HIVE_DEFAULT_PARTITION__":
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise Unreadable(f"{name} {value}") from None


class File:
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
                use_dictionary=[name for name in rows.column_names if name not in _MANY],
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


def spelled(rows: pa.Table) -> pa.Table:
    """Return few rows without the dictionaries of the many that they were among."""
    return rows.cast(pa.schema([ARROW.field(name) for name in rows.column_names]))
