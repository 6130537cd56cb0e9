"""What Redis says becomes rows, whatever it says (NEW-7). No Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from celery_poison.ledger import journal
from celery_poison.pipeline.ingest.ingest import Ingest, Wanted
from celery_poison.pipeline.ingest.stream import LAST_SEQUENCE, Stream, Tip, halfway, ranges
from celery_poison.pipeline.lake import Lake, Position
from celery_poison.pipeline.schema import WIDTHS
from tests.pipeline.journals import COLUMNS, KEY, add, told

HOSTILE = [
    "a\r\nb",
    "\r\n$5\r\nstate\r\n$4\r\nFAIL\r\n",
    "'; drop",
    "\x00\x1b[2J",
    "ü\u2028\U0001f4a3",
    "*2\r\n",
    " ",
]


def _rows(url: str, **asked: Any) -> list[dict[str, Any]]:
    chunks = Stream(url, KEY).chunks("0-0", "+", **asked)
    return [row for chunk in chunks for row in chunk.to_pylist()]


def _plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in COLUMNS) for row in rows]


def test_the_pipeline_knows_the_version_of_the_journal_that_is_written() -> None:
    assert WIDTHS[journal.SCHEMA_VERSION] == len(journal.FIELDS)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_entries_are_read_as_columns_and_nothing_is_lost_at_the_seams(redis_url: str, version: int) -> None:
    client = redis.Redis.from_url(redis_url)
    add(client, 25, version=version)
    assert _plain(_rows(redis_url, fetch=7)) == told(client)


def test_the_quick_way_is_the_one_that_is_taken(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError("word for word")

    add(redis.Redis.from_url(redis_url), 5)
    monkeypatch.setattr("celery_poison.pipeline.ingest.stream.by_words", never)
    assert len(_rows(redis_url)) == 5


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_what_it_is_and_alters_no_other_entry(redis_url: str, text: str) -> None:
    client = redis.Redis.from_url(redis_url)
    add(client, 2)
    add(client, 1, start=2, note=text, task=text)
    add(client, 2, start=3)
    assert _plain(_rows(redis_url)) == told(client)


@pytest.mark.parametrize("feigned", ["1-1", "99999999999999-0", "9" * 30 + "-0"])
def test_a_text_that_looks_like_an_entry_does_not_lead_the_reading_astray(
    redis_url: str, feigned: str
) -> None:
    client = redis.Redis.from_url(redis_url)
    note = f"\r\n*2\r\n${len(feigned)}\r\n{feigned}\r\n*56\r\n$1\r\nv\r\n$1\r\n3\r\n"
    add(client, 5)
    add(client, 5, start=5, note=note)
    add(client, 5, start=10)
    assert _plain(_rows(redis_url, fetch=3)) == told(client)


def test_an_answer_may_be_larger_than_the_buffer(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    add(client, 5)
    add(client, 2, start=5, note="x" * 5_000_000)
    add(client, 5, start=7)
    assert _plain(_rows(redis_url, fetch=7)) == told(client)


def test_versions_are_read_side_by_side(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    add(client, 2, version=1)
    add(client, 2, start=2, version=2, fingerprint="00ff")
    add(client, 1, start=4, version=3, fingerprint="00ff", run_memory_kb="7")
    told = [(row["v"], row["fingerprint"], row["run_memory_kb"]) for row in _rows(redis_url)]
    assert told == [(1, None, None)] * 2 + [(2, "00ff", None)] * 2 + [(3, "00ff", 7)]


@pytest.mark.parametrize(
    ("fields", "column", "value", "rest"),
    [
        ({"v": "9", "event": "x", "new": "y"}, "v", 9, '{"new": "y"}'),
        ({"event": "x"}, "v", None, '{"v": ""}'),
        ({"v": "2", "pid": "99999999999999999999"}, "pid", None, '{"pid": "99999999999999999999"}'),
        ({"v": "2", "runtime_ms": "soon"}, "runtime_ms", None, '{"runtime_ms": "soon"}'),
        ({"v": "2", "note": b"\xff"}, "note", "\\xff", None),
    ],
)
def test_what_no_column_holds_is_kept_beside(
    redis_url: str, fields: dict[str, Any], column: str, value: Any, rest: str | None
) -> None:
    redis.Redis.from_url(redis_url).xadd(KEY, fields)
    (row,) = _rows(redis_url)
    assert (row[column], row["rest"]) == (value, rest)


def test_an_id_is_a_moment_and_one_that_is_none_is_no_error(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    client.xadd(KEY, {"v": "2"}, id="1772452800123-7")
    client.xadd(KEY, {"v": "2"}, id=f"{2**64 - 1}-{2**64 - 1}")
    sane, mad = _rows(redis_url)
    assert sane["at"] == datetime(2026, 3, 2, 12, 0, 0, 123000, UTC)
    assert (sane["seq"], sane["date"]) == (7, date(2026, 3, 2))
    assert (mad["at"], mad["seq"], mad["date"]) == (None, None, None)


def test_ranges_cover_the_whole_without_overlap() -> None:
    cut = ranges("0-0", "1000-5", "900-0", 4)
    inner = [f"{ms}-{LAST_SEQUENCE}" for ms in (925, 950, 975)]
    assert cut == list(pairwise(["0-0", *inner, "1000-5"]))
    assert len(ranges("0-0", "900-9", "900-0", 4)) == 1
    assert ranges("5-0", "5-0", "", 4) == []


def test_a_stream_that_is_not_there_is_an_empty_one(redis_url: str) -> None:
    assert Stream(redis_url, KEY).tip() == Tip(added=0)
    assert _rows(redis_url) == []


def test_a_batch_of_a_long_journal_ends_on_the_way_and_the_last_one_at_its_end(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)
    for number in range(100):
        client.xadd(KEY, {"v": "2"}, id=f"{1000 + number}-1")
    stream = Stream(redis_url, KEY)
    tip, seen = stream.tip(), ["0-0"]
    while seen[-1] != tip.id:
        seen.append(halfway(stream.first_after(seen[-1]), tip, 30) or tip.id)
    assert len(seen) == 5
    assert seen[-1] == "1099-1"
    assert all(len(client.xrange(KEY, f"({low}", high)) <= 40 for low, high in pairwise(seen))  # type: ignore[arg-type]


def test_a_few_entries_are_one_task_and_many_are_several(redis_url: str, tmp_path: Path) -> None:
    pipe = redis.Redis.from_url(redis_url).pipeline(transaction=False)
    for number in range(100_000):
        pipe.xadd(KEY, {"v": "2"}, id=f"{1000 + number}-1")
    pipe.execute()

    ingest = Ingest(Lake(None, str(tmp_path)), Wanted(redis_url))
    tip = ingest._stream.tip()
    assert [ingest._tasks(Position(ms), tip, tip.id) for ms in (0, 50_000, 100_900)] == [4, 2, 1]
