"""``poison_durability="sync"``: a start is on disk, or on a replica, before its task begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.durability import EVERYSEC, REPLICA, find_means
from celery_poison.ledger.writer import Writer, command
from celery_poison.testing import RedisServer, wait_until
from celery_poison.upstream.requests import NeverBegan
from celery_poison.worker.durable import Durable
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew

Start = Callable[..., RedisServer]
Build = Callable[..., Crew]

ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture
def synced(new_crew: Build, redis_url: str) -> Build:
    """Makes a crew whose ledger is on a server of its own."""
    return lambda server, **settings: new_crew(
        redis_url, poison_redis_url=server.url(), poison_durability="sync", **settings
    )


def _replica_of(primary: RedisServer, new_server: Start) -> RedisServer:
    replica = new_server(replicaof=f"127.0.0.1 {primary.port}")
    states = lambda: [row["state"] for row in _replicas(primary)]  # noqa: E731
    wait_until(lambda: states() == ["online"], what="a replica in step")
    return replica


def _replicas(primary: RedisServer) -> list[dict[str, str]]:
    info = primary.client().info("replication")
    return [info[f"slave{number}"] for number in range(info["connected_slaves"])]


def test_EMS_10_a_worker_refuses_to_start_on_a_redis_that_can_promise_nothing(
    synced: Build, new_server: Start
) -> None:
    worker = synced(new_server()).worker().start()
    assert worker.wait() != 0
    said = worker.log_text()
    assert "poison_durability='sync': this Redis promises nothing" in said
    assert "appendonly no" in said and "appendfsync always" in said and "connect a replica" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "solo", "gevent"]))
def test_EMS_10_tasks_run_and_leave_nothing_behind(pool: str, synced: Build, new_server: Start) -> None:
    crew = synced(new_server(**ALWAYS))
    with crew.worker(pool=pool):
        for n in range(30):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 30, "done")
        crew.await_that(crew.nothing_runs, "settled")
        assert crew.unguarded() == 0
    assert crew.no_strikes()


def test_EMS_10_a_start_survives_a_redis_that_the_first_line_of_its_task_kills(
    synced: Build, new_server: Start
) -> None:
    """The point of the whole: Redis and then the worker die, and the death is still attributed.

    Redis is paused when the task is sent, so that a start that nobody waited for would die with it.
    """
    server = new_server(**ALWAYS)
    crew = synced(server, poison_fail_open=False)
    with crew.worker("w1") as worker:
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        server.pause()
        result = crew.send("kills_then_waits", server.pid)
        begun = lambda: crew.starts("kills_then_waits") == 1  # noqa: E731
        crew.await_that(lambda: begun() or "the task waits" in crew.log_text(), "begun, or waiting")
        server.resume()
        crew.await_that(begun, "begun")
        server.kill()
        server.start()
        worker.kill_group()
        worker.wait()
        crew.marks.repair()  # nobody may kill by a number that may be somebody else's by now
        with crew.worker("w2"):
            crew.await_that(lambda: crew.events("crashed"), "attributed")
            assert result.get(timeout=PATIENCE) is None
    assert [(event["id"], event["cause"]) for event in crew.events("crashed")] == [(result.id, "worker_lost")]


def test_EMS_8_a_task_that_was_put_back_while_its_start_waited_does_not_begin(new_server: Start) -> None:
    server = new_server(**ALWAYS)
    client, begin = open_redis(server.url()), command(b"HSET", b"running", b"mid", b"entry")
    durable = Durable(client, Writer(client), fail_open=False)
    server.kill()
    with pytest.raises(NeverBegan):
        durable.write(begin, "worker", is_lost=lambda: True)
    server.start()
    assert durable.write(begin, "worker", is_lost=lambda: False)


def test_EMS_10_with_fail_open_false_a_task_waits_for_its_promise(synced: Build, new_server: Start) -> None:
    server = new_server(**ALWAYS)
    crew = synced(
        server, poison_fail_open=False, poison_heartbeat_interval=60, poison_activation_interval=120
    )
    with crew.worker(concurrency=1):
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        server.pause()
        crew.send("healthy", 1)
        crew.await_that(lambda: "the task waits" in crew.log_text(), "waits, and says so")
        assert not crew.marks.count("healthy", "start")[1]
        server.resume()
        crew.await_that(lambda: crew.done() == 2, "run when it is safe")
        assert "starts are safe again" in crew.log_text()
        assert crew.log_text().count("the task waits") == 1


@pytest.mark.parametrize("fail_open", sampled([True], [False]))
def test_EMS_10_without_its_file_the_start_is_on_a_replica(
    fail_open: bool, synced: Build, new_server: Start
) -> None:
    primary = new_server()
    replica = _replica_of(primary, new_server)
    crew = synced(primary, poison_fail_open=fail_open)
    with crew.worker(concurrency=1):
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        assert find_means(open_redis(primary.url())) == REPLICA
        replica.pause()
        crew.send("healthy", 1)
        crew.await_that(lambda: "no start is on a replica" in crew.log_text(), "said")
        if fail_open:
            crew.await_that(lambda: crew.done() == 2, "run without the promise")
            crew.await_that(lambda: crew.unguarded() == 1, "counted")
        else:
            assert not crew.marks.count("healthy", "start")[1]
        replica.resume()
        crew.await_that(lambda: crew.done() == 2, "run")
    assert crew.no_strikes()


def test_EMS_10_a_stalled_ledger_stalls_a_task_once_and_not_every_task(
    synced: Build, new_server: Start
) -> None:
    server = new_server(**ALWAYS)
    crew = synced(server)
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        server.pause()
        for n in range(1, 41):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 41, "done beside a stalled ledger")
        server.resume()
        crew.await_that(crew.nothing_runs, "settled")
        crew.await_that(lambda: crew.unguarded() >= 40, "counted")
    assert crew.no_strikes()


def test_EMS_10_a_worker_that_starts_without_its_ledger_finds_out_later_what_it_can_promise(
    synced: Build, new_server: Start
) -> None:
    server = new_server()
    server.kill()
    crew = synced(server)
    with crew.worker():
        crew.await_that(lambda: "asks what Redis can promise" in crew.log_text(), "said at the start")
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        server.start()
        crew.await_that(lambda: crew.quarantine.queries.workers(1000), "enrolled")
        runs = lambda: crew.send("healthy", 1).get(timeout=PATIENCE)  # noqa: E731
        crew.await_that(
            lambda: runs() and "this Redis promises nothing" in crew.log_text(), "no promise: said"
        )
        crew.await_that(lambda: crew.unguarded() >= 1, "and counted")


def test_EMS_10_WAITAOF_holds_a_task_until_the_file_is_synced(synced: Build, new_server: Start) -> None:
    binary = os.environ.get("POISON_TEST_REDIS")
    if not binary or not Path(binary).exists():
        pytest.skip("POISON_TEST_REDIS names no redis-server of version 8.0 or newer")
    server = new_server(binary, appendonly="yes", appendfsync="everysec")
    crew = synced(server, poison_fail_open=False)
    with crew.worker(concurrency=1):
        crew.await_that(lambda: "set appendfsync always" in crew.log_text(), "warned")
        assert find_means(open_redis(server.url())) == EVERYSEC
        for n in range(3):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 3, "done")
        server.client().config_set("appendfsync", "no")
        crew.send("healthy", 3)
        crew.await_that(lambda: "the task waits" in crew.log_text(), "nobody syncs: it waits")
        assert not crew.marks.count("healthy", "start")[3]
        server.client().config_set("appendfsync", "always")
        crew.await_that(lambda: crew.done() == 4, "run")
    assert crew.no_strikes()
