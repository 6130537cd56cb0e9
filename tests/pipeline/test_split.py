"""What tasks write themselves is what the pure functions would have made of it (NEW-7)."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from celery_poison.pipeline import healthy, split, tables
from celery_poison.pipeline.batches import MARK, Manifest
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.entries import ARROW
from celery_poison.pipeline.lake import Lake

MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC)
#: The six fields of schema v2.
LATE = ("payload_bytes", "memory_kb", "fingerprint", "shape", "release", "evidence")
TABLES = ("attempts", "messages")


def _hostile(number: int, chance: random.Random) -> dict[str, Any]:
    """An entry in which anything may be missing, and which now and then meets others."""
    ended = chance.choices(
        ["finished", "crashed", "interrupted", "rolled_back", "quarantined", "cleared", None],
        [80, 6, 3, 3, 3, 3, 2],
    )[0]
    outcome = {"finished": ["success", "failure", "lost", None], "crashed": ["exact", "shared", None]}
    name = chance.choice([str(number), str(number), str(number), str(number // 9), None])
    at = MIDNIGHT + timedelta(milliseconds=chance.randrange(-40_000_000, 40_000_000))
    told = {
        "entry": f"{int(at.timestamp() * 1000)}-{number}",
        "at": at if chance.random() > 0.02 else None,
        "seq": number,
        "v": 2,
        "event": ended,
        "id": name,
        "mid": name if chance.random() > 0.1 else None,
        "token": chance.choice([f"t{name}", f"t{number}", f"t{number}", f"t{number}", None]),
        "task": chance.choice(["a.b", "'; drop --", "\N{SNAKE}", None]),
        "worker": chance.choice(["w@h/b", "w@x@h2/b/c", "no at/b", "n@oslash", "", "/", "@", None]),
        "pid": chance.choice([1, 2, None]),
        "outcome": chance.choice(outcome.get(ended, [None])),  # type: ignore[arg-type]
        "runtime_ms": chance.choice([0, 5, 70_000, 3_000_000, 9_000_000_000_000, -7, None]),
        "incident": chance.choice(["i1", None, None]) if ended != "finished" else None,
        "deliveries": chance.choice([1, None]),
        "payload_bytes": chance.choice([0, 2**62, None]),
        "fingerprint": chance.choice(["f1", f"f{number}", None]),
        "evidence": "{}" if ended == "crashed" else None,
    }
    if number % 4 == 0:  # as version 1 wrote it
        told = {field: value for field, value in told.items() if field not in LATE} | {"v": 1}
    return told | ({"v": chance.choice([3, None])} if number % 97 == 0 else {})


def _write(lake: Path, batch: int, entries: list[dict[str, Any]], schema: pa.Schema = ARROW) -> list[Path]:
    """Write a batch of the lake, with a file for each date."""
    place = lake / "journal" / f"batch={batch}"
    days: dict[str, list[dict[str, Any]]] = {}
    for each in entries:
        day = each["at"].date().isoformat() if each["at"] else "__HIVE_DEFAULT_PARTITION__"
        days.setdefault(f"date={day}", []).append(each)
    schema = schema.remove(schema.get_field_index("date"))
    for day, several in days.items():
        (place / day).mkdir(parents=True)
        file = place / day / "part-0.parquet"
        pq.write_table(pa.Table.from_pylist(several, schema), file, row_group_size=300)
    versions = Counter("none" if each["v"] is None else str(each["v"]) for each in entries)
    (place / MARK).write_text(Manifest(batch, batch, "0-0", "1-1", len(entries), dict(versions)).text())
    return [place / day / "part-0.parquet" for day in days]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A hostile journal in two batches: one of now, and one from before schema v2 had come."""
    chance = random.Random(7)
    entries = [_hostile(number, chance) for number in range(4_000)]
    old = [each for each in entries if each["v"] == 1]
    _write(tmp_path, 0, [each for each in entries if each["v"] != 1])
    _write(tmp_path, 1, old, pa.schema([field for field in ARROW if field.name not in LATE]))
    return tmp_path


def _rows(frame: Any) -> Counter[str]:
    return Counter(str(row) for row in frame.select(*sorted(frame.columns)).collect())


def _made(spark: Any, lake: Path) -> dict[str, Any]:
    derived = Derived(spark, Lake(spark, str(lake)))
    derived.make()
    return {name: derived[name] for name in TABLES}


def _by_tasks(lake: Path, table: str) -> list[Path]:
    return list((lake / "tables" / table).rglob("*.zstd.parquet"))


def _agree(spark: Any, lake: Path) -> None:
    journal = Lake(spark, str(lake)).read().journal
    made = _made(spark, lake)
    for name, defined in (("attempts", tables.attempts(journal)), ("messages", tables.messages(journal))):
        assert _rows(made[name]) == _rows(defined), name
        kinds = {field.name: field.dataType for field in defined.schema}
        assert {field.name: field.dataType for field in made[name].schema} == kinds
    assert not (lake / "tables" / "_making").exists()


def test_tasks_and_spark_together_make_what_the_definition_says_of_a_hostile_journal(
    spark: Any, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_SHARE", 10_000)
    _agree(spark, lake)
    assert all(len(_by_tasks(lake, name)) > 2 for name in TABLES)
