"""Writing a directory of the lake, and making it count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from celery_poison.errors import PoisonError
from celery_poison.pipeline.batches import MARK, Manifest
from celery_poison.pipeline.ingest.direct import Receipt
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.schema import STORED


def write_rows(rows: Any, place: str) -> None:
    writer = rows.write.mode("overwrite").partitionBy("date").option("compression", "zstd")
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(place)


def count_versions(lake: Lake, place: str) -> dict[str, int]:
    """Count what was written, as it can be read again: schema version -> entries."""
    if not any(name.startswith("date=") for name in lake.files.names(place)):
        return {}
    rows = lake.session.read.schema(STORED).parquet(place).groupBy("v").count().collect()
    return {"none" if row["v"] is None else str(row["v"]): row["count"] for row in rows}


def gather(lake: Lake, receipts: Sequence[Receipt], into: str, place: str) -> dict[str, int]:
    """Move the files that have a receipt from where the tasks wrote them; count them: version -> entries."""
    versions: Counter[str] = Counter()
    for receipt in receipts:
        if not lake.files.rename(f"{into}/{receipt.name}", f"{place}/{receipt.day}/{receipt.name}"):
            raise PoisonError(
                f"{into}/{receipt.name} was written by a task, but is not there: is {lake.root} one directory"
                " on all machines?"
            )
        versions.update(receipt.versions)
    lake.files.delete(into)  # what is left has no receipt
    return dict(versions)


def publish(lake: Lake, place: str, manifest: Manifest) -> None:
    """Make a written batch count, in one step."""
    lake.files.write(f"{place}/{MARK}", manifest.text())
    target = f"{lake.journal_directory}/{manifest.name}"
    if place == target:
        return
    lake.files.delete(target)  # unmarked: whatever it was, it did not count
    if not lake.files.rename(place, target):
        raise PoisonError(f"{place} could not be renamed to {target}")
