"""Reading the lake: what counts is read, what is left out is told, nothing of it is fatal.

::

    lake = Lake(session, "/data/poison")
    reading = lake.read()
    reading.journal        # DataFrame of schema.JOURNAL
    reading.left_out       # unfinished batches, corrupt files, unknown schema versions
    reading.gaps           # entries that were trimmed before the ingest saw them
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from celery_poison.pipeline.batches import NO_JOURNAL, Batches, Gap, LeftOut, Manifest, find
from celery_poison.pipeline.files import LocalFiles, absolute, open_files
from celery_poison.pipeline.schema import JOURNAL, STORED, VERSIONS


@dataclass(frozen=True)
class Reading:
    """The journal as the lake has it.

    Attributes:
        journal: DataFrame of ``schema.JOURNAL``; its rows are in no order.
        rows: how many the manifests promise, what was left out for its version not among them.
        left_out: what is in the lake and not in ``journal``.
        gaps: what never came into the lake.
    """

    journal: Any
    rows: int
    left_out: tuple[LeftOut, ...]
    gaps: tuple[Gap, ...]


class Lake:
    """One directory, on any file system that Spark knows."""

    def __init__(self, session: Any, root: str) -> None:
        self.session = session
        self.root = absolute(root)
        self.files = open_files(session, self.root)
        #: A directory that every process sees by the same path; else only Spark knows how to write to it.
        self.tasks_write = isinstance(self.files, LocalFiles)
        self.journal_directory = f"{self.root}/journal"
        self.checkpoint = f"{self.root}/_checkpoint"
        self.staging = f"{self.root}/_staging"
        self.lock_path = f"{self.root}/_lock"

    def of_no_journal(self) -> str:
        """Return what a lake holds to which no journal belongs, in its own words; empty for any other."""
        return (self.files.read(f"{self.root}/{NO_JOURNAL}") or "").strip()

    def table(self, name: str) -> str:
        """Return the directory of a derived table."""
        return f"{self.root}/tables/{name}"

    def batches(self) -> Batches:
        return find(self.files, self.journal_directory)

    def read(self) -> Reading:
        """Look at every batch and at the end of every file, and return what can be read.

        A file whose end is whole and whose middle is damaged shows itself only while it is being read: its
        rows are missing then. ``check`` finds it.
        """
        return self._read(deep=False)

    def check(self) -> Reading:
        """The same, after every value was read once."""
        return self._read(deep=True)

    def _read(self, deep: bool) -> Reading:
        batches = self.batches()
        holding = [manifest for manifest in batches.counting if manifest.rows]
        damaged = self._damaged(holding, deep) if holding else []
        unknown = _unknown_versions(holding)
        journal = self.stored(holding).where(F.col("v").isin(*VERSIONS)).select(*JOURNAL.fieldNames())
        return Reading(
            journal=journal,
            rows=sum(m.rows for m in holding) - sum(left.rows or 0 for left in unknown),
            left_out=(*batches.left_out, *damaged, *unknown),
            gaps=tuple(gap for manifest in batches.counting for gap in manifest.gaps),
        )

    def stored(self, manifests: Sequence[Manifest], strict: bool = False) -> Any:
        """Return batches as a DataFrame of ``schema.STORED``; ``strict``: a corrupt file is an error."""
        if not manifests:
            return self.session.createDataFrame([], STORED)
        reader = self.session.read.schema(STORED).option("basePath", self.journal_directory)
        reader = reader.option("parquet.page.verify-checksum.enabled", True)
        reader = reader.option("ignoreCorruptFiles", not strict).option("ignoreMissingFiles", not strict)
        paths = [f"{self.journal_directory}/{manifest.name}" for manifest in manifests]
        return reader.parquet(*paths).select(*STORED.fieldNames())

    def _damaged(self, manifests: Sequence[Manifest], deep: bool) -> list[LeftOut]:
        """Return the files that cannot be read, and the batches that hold fewer rows than they should."""
        found = self._counted(manifests, deep) if deep or not self.tasks_write else self._ends(manifests)
        told = []
        for manifest in manifests:
            inside = {path: n for path, n in found.items() if f"/journal/{manifest.name}/" in path}
            lacking = manifest.rows - sum(inside.values())
            if not lacking:
                continue
            names = {"/".join(path.rsplit("/", 2)[1:]) for path in inside}
            corrupt = [name for name in self._parquet(manifest.name) if name not in names]
            what = "corrupt: " + ", ".join(corrupt) if corrupt else "a file is damaged or foreign"
            told.append(LeftOut(manifest.name, what, lacking))
        return told

    def _counted(self, manifests: Sequence[Manifest], deep: bool) -> dict[str, int]:
        """Return the rows of each file that Spark can read."""
        rows = self.stored(manifests).withColumn("file", F.input_file_name())
        # The greatest hash is of no interest, but cannot be found without reading every value.
        values = F.max(F.xxhash64(*STORED.fieldNames())) if deep else F.lit(0)
        told = rows.groupBy("file").agg(F.count("*").alias("rows"), values.alias("seen")).collect()
        return {unquote(row["file"]): row["rows"] for row in told}

    def _ends(self, manifests: Sequence[Manifest]) -> dict[str, int]:
        """The same by what the end of each file says: far cheaper than Spark's first job."""
        found = {}
        for manifest in manifests:
            for name in self._parquet(manifest.name):
                path = f"{self.journal_directory}/{manifest.name}/{name}"
                with suppress(OSError, pa.ArrowException):
                    found[path] = pq.read_metadata(path).num_rows
        return {path: rows for path, rows in found.items() if rows}

    def _parquet(self, batch: str) -> list[str]:
        place = f"{self.journal_directory}/{batch}"
        return [
            f"{date}/{name}"
            for date in self.files.names(place)
            if date.startswith("date=")
            for name in self.files.names(f"{place}/{date}")
            if not name.startswith(("_", "."))
        ]


def _unknown_versions(manifests: Sequence[Manifest]) -> list[LeftOut]:
    counts: dict[str, int] = {}
    for manifest in manifests:
        for version, count in manifest.versions.items():
            if version not in map(str, VERSIONS):
                counts[version] = counts.get(version, 0) + count
    return [
        LeftOut("journal", f"schema version {version}, which this release does not know", count)
        for version, count in sorted(counts.items())
    ]
