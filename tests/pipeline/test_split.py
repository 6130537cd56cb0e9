"""What tasks write themselves is what the pure functions would have made of it (NEW-7)."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from celery_poison.pipeline import tables
from celery_poison.pipeline.arrow import doubles, split
from celery_poison.pipeline.batches import MARK, Manifest
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.files import LocalFiles
from celery_poison.pipeline.ingest.entries import ARROW
from celery_poison.pipeline.lake import Lake

MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC)
#: The six fields of schema v2.
LATE = ("payload_bytes", "memory_kb", "fingerprint", "shape", "release", "evidence")


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
        "runtime_ms": chance.choice([0, 5, 70_000, 3_000_000, 9_000_000_000_000, 2**63 - 1, -7, None]),
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
    entries = [_hostile(number, chance) for number in range(3_000)]
    old = [each for each in entries if each["v"] == 1]
    _write(tmp_path, 0, [each for each in entries if each["v"] != 1])
    _write(tmp_path, 1, old, pa.schema([field for field in ARROW if field.name not in LATE]))
    return tmp_path


@pytest.fixture
def journal(spark: Any, lake: Path) -> Any:
    return Lake(spark, str(lake)).read().journal


def _split(spark: Any, lake: Path, journal: Any) -> Any:
    return split.split(Lake(spark, str(lake)), journal, str(lake / "aside"))


def _made(spark: Any, parts: Any, name: str, make: Any) -> Any:
    """Return a table as it is put together: what tasks wrote, and what the definition makes of the rest."""
    rest = make(parts.rest)
    told = spark.read.parquet(*parts.files[name])
    return rest.unionByName(told.withColumn("end", F.lit("finished")) if name == "attempts" else told)


def _rows(frame: Any) -> Counter[str]:
    return Counter(str(row) for row in frame.select(*sorted(frame.columns)).collect())


@pytest.mark.matrix
def test_tasks_and_spark_together_make_what_the_definitions_say_of_a_hostile_journal(
    spark: Any, lake: Path, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_SHARE", 20_000)
    parts = _split(spark, lake, journal)
    for name, key, make in (("attempts", "token", tables.attempts), ("messages", "mid", tables.messages)):
        defined, made = make(journal), _made(spark, parts, name, make)
        rows = _rows(defined)
        assert rows == _rows(made), name
        assert [(f.name, f.dataType) for f in made.schema] == [(f.name, f.dataType) for f in defined.schema]
        assert len({row[key] for row in made.select(key).collect()}) == rows.total(), f"{key} is unique"
        assert len(parts.files[name]) > 2 and spark.read.parquet(*parts.files[name]).count() > 200
    assert parts.rest.where("event = 'finished'").count() > 100


@pytest.mark.matrix
def test_a_file_without_an_end_is_left_out_and_one_damaged_inside_leaves_all_to_spark(
    spark: Any, lake: Path, journal: Any
) -> None:
    files = sorted(lake.glob("journal/*/*/*.parquet"))
    files[0].write_bytes(b"PAR1 rubbish PAR1")
    parts = _split(spark, lake, journal)
    assert _rows(_made(spark, parts, "messages", tables.messages)) == _rows(tables.messages(journal))
    content = bytearray(files[-1].read_bytes())
    content[4:2000] = bytes(1996)
    files[-1].write_bytes(content)
    assert _split(spark, lake, journal) is None


@pytest.mark.matrix
def test_what_tasks_cannot_see_or_keep_in_mind_is_left_to_spark(
    spark: Any, lake: Path, journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_MOST", 1000)
    assert _split(spark, lake, journal) is None
    elsewhere = Lake(spark, str(lake))
    elsewhere.tasks_write = False
    assert split.split(elsewhere, journal, str(lake / "aside")) is None


def test_words_that_come_twice_are_found_in_one_file_and_across_files(tmp_path: Path) -> None:
    words = ["", "a", "ab", "\0", "\0\0", "abcdefgh", "abcdefghi", "\N{SNAKE}", *map(str, range(1000))]
    told = doubles.hashes(pa.array(words))
    assert len(set(told.tolist())) == len(words)
    assert (doubles.hashes(pa.array(["before", None, *words]).slice(2)) == told).all()
    assert len(doubles.hashes(pa.array([], pa.string()))) == 0
    same = doubles.hashes(pa.array(["x" * 100_000 + "y", "x" * 100_000 + "z"]))
    assert same[0] == same[1]  # a long word costs no more than another, and who asks does not mind
    paths = [
        doubles.save([told[:500], told[100:200]], str(tmp_path)),
        doubles.save([told[490:]], str(tmp_path)),
    ]
    paths.append(doubles.save([], str(tmp_path)))
    found = [number for part in range(3) for number in doubles.among(paths, part, 3)]
    assert sorted(found) == sorted([*told[100:200], *told[490:500]])


class _Dying(LocalFiles):
    """Dies at its n-th rename."""

    def __init__(self, last: int) -> None:
        self._left = last

    def rename(self, path: str, target: str) -> bool:
        self._left -= 1
        if self._left < 0:
            raise InterruptedError
        return super().rename(path, target)


@pytest.mark.parametrize("last", range(6))
def test_a_table_is_the_old_one_or_the_new_one_or_not_there_whenever_its_maker_dies(
    tmp_path: Path, last: int
) -> None:
    lake = Lake(None, str(tmp_path))
    lake.files = _Dying(last)
    tasks, table = (
        [tmp_path / "tables/_making/a", tmp_path / "tables/_making/b"],
        tmp_path / "tables/attempts",
    )
    for path in (table / "old", *tasks):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    writer = Mock(parquet=lambda place: (Path(place).mkdir(parents=True), (Path(place) / "c").touch()))
    with suppress(InterruptedError):
        Derived(Mock(), lake)._store_with(writer, "attempts", list(map(str, tasks)))
    found = {path.name for path in table.rglob("*") if path.is_file()}
    assert found == ({"old"} if last < 3 else set() if last == 3 else {"a", "b", "c"})
