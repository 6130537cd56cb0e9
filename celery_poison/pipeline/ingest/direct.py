"""From Redis into Parquet within one task: rows never pass through Java, which costs more than all the rest.

The tasks of a batch write files where no reader looks, each under a name of its own, and what Spark brings
to the driver is no rows but receipts: which files were closed, and what is in them. The driver moves these,
and only these, into the batch (``writing.gather``). A task that ran twice, or that lives on after its driver,
leaves files without a receipt, which never count and are cleared away.

Only where all processes see one directory by the same path: elsewhere Spark writes the rows itself.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StringType, StructField, StructType

from celery_poison.errors import PoisonError
from celery_poison.pipeline.ingest.entries import ARROW
from celery_poison.pipeline.ingest.source import JournalSource, StreamReader, Wanted

NAME = "celery_poison_files"

#: A row group is written out when it has so many rows or bytes.
_ROWS, _BYTES = 131_072, 64 << 20

#: Every entry has another value here, so that a dictionary of them would only cost.
_UNIQUE = frozenset({"entry", "seq", "id", "mid", "token"})

_SCHEMA = ARROW.remove(ARROW.get_field_index("date"))  # readers take it from the directory's name

RECEIPTS = StructType(
    [
        StructField("name", StringType(), nullable=False),
        StructField("day", StringType(), nullable=False),
        StructField("rows", LongType(), nullable=False),
        StructField("versions", StringType(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Receipt:
    """A file that a task wrote and closed.

    Attributes:
        name: of the file.
        day: the directory of the batch into which it belongs, ``date=…``.
        rows: in it.
        versions: schema version -> rows; ``none`` for rows without one.
    """

    name: str
    day: str
    rows: int
    versions: dict[str, int]

    @classmethod
    def of(cls, row: Any) -> Receipt:
        return cls(row["name"], row["day"], row["rows"], json.loads(row["versions"]))


class FilesSource(JournalSource):
    """The journal as files written: for the ingest alone. Option ``into``: their directory."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return RECEIPTS

    def streamReader(self, schema: StructType) -> StreamReader:
        return _FilesReader(Wanted.from_options(self.options), self.options["into"])


class _FilesReader(StreamReader):
    def __init__(self, wanted: Wanted, into: str) -> None:
        super().__init__(wanted)
        self._into = into

    def read(self, partition: Any) -> Iterator[Any]:
        for receipt in write(super().read(partition), self._into):
            yield (receipt.name, receipt.day, receipt.rows, json.dumps(receipt.versions))


def write(chunks: Iterator[pa.RecordBatch], into: str) -> Iterator[Receipt]:
    """Write rows of ``ARROW``, in the order of their dates, into a file for each date."""
    os.makedirs(into, exist_ok=True)
    file: _File | None = None
    for chunk in chunks:
        for day, rows in _days(chunk):
            if file and file.day != day:
                yield file.close()
                file = None
            file = file or _File(into, day)
            file.add(rows)
    if file:
        yield file.close()


def _days(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Cut rows where their date changes."""
    dates = rows.column("date")
    first, last = dates[0].as_py(), dates[-1].as_py()
    if first == last and dates.null_count in (0, len(dates)):  # ids never go back
        yield _directory(first), rows
        return
    start = 0
    for date, several in groupby(dates.to_pylist()):
        count = len(list(several))
        yield _directory(date), rows.slice(start, count)
        start += count


def _directory(date: object) -> str:
    """Return the name that Spark gives to the directory of a date."""
    return f"date={date or '__HIVE_DEFAULT_PARTITION__'}"


class _File:
    def __init__(self, into: str, day: str) -> None:
        self.day = day
        self._path = Path(into, f"part-{uuid.uuid4()}.zstd.parquet")
        self._writer = pq.ParquetWriter(
            self._path,
            _SCHEMA,
            compression="zstd",
            use_dictionary=[name for name in _SCHEMA.names if name not in _UNIQUE],
            write_page_checksum=True,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._versions: Counter[str] = Counter()

    def add(self, rows: pa.RecordBatch) -> None:
        for each in pc.value_counts(rows.column("v")).to_pylist():
            self._versions["none" if each["values"] is None else str(each["values"])] += each["counts"]
        self._waiting.append(rows.select(_SCHEMA.names))
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= _ROWS or self._waiting_bytes >= _BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    def close(self) -> Receipt:
        self._flush()
        self._writer.close()
        rows = self._versions.total()
        if pq.read_metadata(self._path).num_rows != rows:
            raise PoisonError(f"{self._path} does not hold what was written into it: is the disk in order?")
        return Receipt(self._path.name, self.day, rows, dict(self._versions))
