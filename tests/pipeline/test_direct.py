"""Tasks write Parquet themselves, and only what has a receipt comes into the lake (NEW-7). No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from celery_poison.errors import PoisonError
from celery_poison.pipeline.ingest import direct
from celery_poison.pipeline.ingest.direct import Receipt, write
from celery_poison.pipeline.ingest.stream import LAST_SEQUENCE, Stream
from celery_poison.pipeline.ingest.writing import gather
from celery_poison.pipeline.lake import Lake
from tests.pipeline.journals import KEY, entry

MIDNIGHT = 1_772_496_000_000  # between 2 and 3 March 2026


@pytest.fixture
def journal(redis_url: str) -> list[str]:
    """Entries before and after midnight, one of schema v1, one without a version, ids that are no time."""
    client = redis.Redis.from_url(redis_url)
    ids = [f"{MIDNIGHT + ms}-0" for ms in range(-5, 5)]
    ids += [f"{MIDNIGHT + 5}-{LAST_SEQUENCE}", f"{MIDNIGHT + 6}-0", f"{2**64 - 1}-1"]
    for number, name in enumerate(ids):
        fields: Any = entry(number, version=1 if number == 3 else 2)
        client.xadd(KEY, {"colour": "red"} if number == 4 else fields, id=name)
    return ids


def _chunks(url: str, fetch: int) -> Iterator[Any]:
    return (chunk.rows for chunk in Stream(url, KEY).chunks("0-0", "+", fetch))


def _entries(path: Path) -> list[str]:
    return [str(name) for name in pq.ParquetFile(path).read(columns=["entry"])["entry"].to_pylist()]


@pytest.mark.parametrize("fetch", [2, 4, 100])
def test_each_date_has_its_files_and_the_receipts_tell_what_is_in_them(
    redis_url: str, journal: list[str], tmp_path: Path, fetch: int
) -> None:
    receipts = list(write(_chunks(redis_url, fetch), str(tmp_path)))
    assert {path.name for path in tmp_path.iterdir()} == {receipt.name for receipt in receipts}
    assert [(receipt.day, _entries(tmp_path / receipt.name)) for receipt in receipts] == [
        ("date=2026-03-02", journal[:5]),
        ("date=2026-03-03", journal[5:10]),
        ("date=__HIVE_DEFAULT_PARTITION__", journal[10:11]),
        ("date=2026-03-03", journal[11:12]),
        ("date=__HIVE_DEFAULT_PARTITION__", journal[12:]),
    ]
    assert [receipt.rows for receipt in receipts] == [5, 5, 1, 1, 1]
    assert receipts[0].versions == {"1": 1, "2": 3, "none": 1}


def test_much_is_written_in_parts_so_that_memory_stays_small(
    redis_url: str, journal: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_ROWS", 2)
    first, *_ = write(_chunks(redis_url, 1), str(tmp_path))
    file = pq.ParquetFile(tmp_path / first.name)
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2, 2, 1]
    assert _entries(tmp_path / first.name) == journal[:5]


def test_a_file_without_a_receipt_does_not_come_into_the_lake(
    redis_url: str, journal: list[str], tmp_path: Path
) -> None:
    lake, into = Lake(None, str(tmp_path / "lake")), tmp_path / "files"
    receipts = list(write(_chunks(redis_url, 100), str(into)))
    twice = list(write(_chunks(redis_url, 100), str(into)))  # the same task, by an executor given up for lost
    place = tmp_path / "lake" / "batch=0"
    assert gather(lake, receipts, str(into), str(place)) == {"1": 1, "2": 11, "none": 1}
    found = {f"{path.parent.name}/{path.name}" for path in place.glob("*/*")}
    assert found == {f"{receipt.day}/{receipt.name}" for receipt in receipts}
    assert len(twice) == len(receipts) and not into.exists()


def test_a_file_that_the_driver_cannot_see_is_no_silent_loss(tmp_path: Path) -> None:
    lake = Lake(None, str(tmp_path))
    with pytest.raises(PoisonError, match="one directory on all machines"):
        gather(lake, [Receipt("part-1", "date=2026-03-02", 1, {"2": 1})], f"{tmp_path}/a", f"{tmp_path}/b")
