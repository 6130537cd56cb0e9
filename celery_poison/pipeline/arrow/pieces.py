"""Reading the journal's files within a task, as ``Lake.stored`` reads them with Spark."""

from __future__ import annotations

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
#: Texts of so many values that a dictionary of them would only cost.
MANY = frozenset({"entry", "id", "mid", "token", "fingerprint", "note", "evidence", "rest"})
_ALIKE = [field.name for field in ARROW if field.type == pa.string() and field.name not in MANY]
_WORD = pa.dictionary(pa.int32(), pa.string())


class Unreadable(ValueError):
    """A file that is not what this module expects; Spark may know better."""


@dataclass(frozen=True)
class Piece:
    """Every ``of``-th row group of a file, from the ``first`` on."""

    path: str
    first: int = 0
    of: int = 1


def read(pieces: Sequence[Piece], names: Sequence[str]) -> Iterator[pa.Table]:
    """Return columns of ``entries.ARROW``, many rows at a time; texts of few values as a dictionary.

    What the lake's reader leaves out is left out: a file without a whole end, and entries of a schema version
    that this release does not know.

    Raises:
        Unreadable: a file is damaged inside, or is not what it should be.
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
