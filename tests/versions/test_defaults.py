"""Workers as Celery starts them, with mingle and gossip: they consume, count a death, give back and leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.apps.harness import Fleet


def _rarely(*names: str) -> list[Any]:
    """These take part in `tox -e matrix` and `tox -m versions` only."""
    return [pytest.param(name, marks=pytest.mark.matrix) for name in names]


POOLS = pytest.mark.parametrize("pool", ["prefork", *_rarely("threads", "solo", "gevent", "eventlet")])
BOTH = pytest.mark.parametrize("broker_url", ["redis", *_rarely("rabbitmq")], indirect=True)


def _done(fleet: Fleet, count: int) -> Callable[[], bool]:
    return lambda: len(fleet.marks.count("healthy", "end")) == count


def _left_on(broker_url: str) -> set[str]:
    """What waits or is unacknowledged on a Redis broker; of RabbitMQ nothing is known here."""
    if not broker_url.startswith("redis"):
        return set()
    with redis.Redis.from_url(broker_url, decode_responses=True) as client:
        return {"celery", "unacked", "unacked_index"} & {*client.keys()}


@POOLS
@BOTH
def test_a_worker_with_celerys_defaults_consumes_and_leaves_when_it_is_asked_to(
    fleet: Fleet, pool: str
) -> None:
    """kombu 5.5 was told to wait for ever for the answers of mingle: nothing ran, and nobody could leave."""
    with fleet.worker(pool=pool, defaults=True) as worker:
        worker.wait_ready()
        for n in range(20):
            fleet.send("healthy", n)
        fleet.await_that(_done(fleet, 20), "all done")
        fleet.send("slow", 1.0)
        fleet.await_that(lambda: fleet.marks.all("slow", "start"), "one more runs")
        worker.terminate()
        assert worker.wait() == 0
    assert set(fleet.marks.count("healthy", "start").values()) == {1}
    assert len(fleet.marks.all("slow", "end")) == 1
    assert _left_on(fleet.broker_url) == set(), "it was acknowledged, after its worker was asked to leave"


@pytest.mark.parametrize("pool", ["prefork", *_rarely("threads", "solo", "gevent")])
def test_EMS_6_with_celerys_defaults_the_messages_of_a_killed_worker_come_back(
    fleet: Fleet, pool: str
) -> None:
    with fleet.worker("w1", pool, concurrency=1, defaults=True) as worker:
        worker.wait_ready()
        for n in range(3):
            fleet.send("gated", n)
        fleet.await_that(lambda: fleet.marks.all("gated", "start"), "one runs, two wait in the worker")
        worker.kill_group()
        worker.wait()
    fleet.marks.open_gate()
    with fleet.worker("w2", pool, concurrency=1, defaults=True):
        fleet.await_that(lambda: len(fleet.marks.count("gated", "end")) == 3, "all done")
    starts = fleet.marks.count("gated", "start")
    assert sorted(starts.values()) == [1, 1, 2], "only what had run at the death runs again"


def test_EMS_3_with_celerys_defaults_a_killed_pool_process_is_counted(fleet: Fleet) -> None:
    result = fleet.send("kill_child")
    with fleet.worker(defaults=True):
        fleet.await_that(fleet.quarantine.list, "in quarantine")
    (kept,) = fleet.quarantine.list()
    assert (kept.id, kept.cause, kept.crashes) == (result.id, "signal:9", 2)
