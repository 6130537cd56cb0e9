"""What Celery of some version can be told, beside guarded tasks."""

from __future__ import annotations

from collections.abc import Callable

import celery
import pytest
import redis
from kombu import Connection

from tests.apps.harness import Fleet

NewFleet = Callable[..., Fleet]

#: A quorum queue, by which Celery leaves delays to RabbitMQ. That takes an exchange of topics.
QUORUM = {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}


def since(*version: int) -> None:
    if version > celery.VERSION:
        pytest.skip(f"this Celery has no such option: {'.'.join(map(str, version))} brought it")


def _waiting(url: str, queue: str) -> int:
    with Connection(url) as connection, connection.channel() as channel:
        return int(channel.queue_declare(queue, passive=True).message_count)


def test_a_delayed_task_of_a_quorum_queue_waits_in_RabbitMQ_and_runs_once(
    new_fleet: NewFleet, rabbit_url: str
) -> None:
    fleet = new_fleet(rabbit_url, **QUORUM)
    with fleet.worker(defaults=True) as worker:
        worker.wait_ready()
        fleet.app.tasks["fleet.healthy"].apply_async((1,), countdown=8)
        fleet.await_that(lambda: _waiting(rabbit_url, "celery_delayed_3"), "it waits there")
        assert not fleet.marks.all("healthy", "start")
        fleet.await_that(lambda: fleet.marks.all("healthy", "end"), "done")
        fleet.await_that(lambda: not [*fleet.quarantine.queries.running()], "nothing runs")
    assert fleet.marks.count("healthy", "start") == {1: 1}


def test_EMS_3_a_delayed_poison_of_a_quorum_queue_is_counted_and_quarantined(
    new_fleet: NewFleet, rabbit_url: str
) -> None:
    fleet = new_fleet(rabbit_url, **QUORUM)
    with fleet.worker(defaults=True) as worker:
        worker.wait_ready()
        result = fleet.app.tasks["fleet.kill_child"].apply_async(countdown=1)
        fleet.await_that(fleet.quarantine.list, "in quarantine")
    (kept,) = fleet.quarantine.list()
    assert (kept.id, kept.cause, kept.crashes) == (result.id, "signal:9", 2)


def test_without_prefetching_a_worker_takes_what_it_can_run_and_a_death_is_counted(
    fleet: Fleet, broker_url: str
) -> None:
    since(5, 6)
    option = {"concurrency": 1, "args": ["--disable-prefetch"], "defaults": True}
    with fleet.worker("w1", **option), redis.Redis.from_url(broker_url) as broker:
        for n in range(3):
            fleet.send("gated", n)
        fleet.await_that(lambda: fleet.marks.all("gated", "start"), "one runs")
        with fleet.worker("w2", **option):
            fleet.await_that(lambda: len(fleet.marks.all("gated", "start")) == 2, "the other took one")
            assert broker.llen("celery") == 1, "the third waits at the broker"
            fleet.marks.open_gate()
            fleet.await_that(lambda: len(fleet.marks.all("gated", "end")) == 3, "all done")
            fleet.send("kill_child")
            fleet.await_that(fleet.quarantine.list, "in quarantine")
    assert [kept.crashes for kept in fleet.quarantine.list()] == [2]


def test_a_worker_whose_pool_processes_are_not_forked_does_not_start_and_says_why(fleet: Fleet) -> None:
    since(5, 7)
    fleet.settings["worker_pool_start_method"] = "spawn"
    with fleet.worker() as worker:
        assert worker.wait() == 1
    assert "celery_poison: worker_pool_start_method='spawn'" in fleet.log_text()
