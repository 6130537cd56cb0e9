"""What a task starts and leaves running is no part of its worker."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from tests import sampled
from tests.apps.harness import Fleet
from tests.strangers.forks import build


@dataclass
class Forking(Fleet):
    module = "tests.strangers.forks_app"
    build = staticmethod(build)


@pytest.fixture
def new_forking(assemble: Callable[..., Forking]) -> Callable[..., Forking]:
    # So long that a death which is noticed late is not noticed within the patience of the test.
    return partial(assemble, Forking, poison_activation_interval=30.0)


@pytest.mark.parametrize(
    ("broker_url", "way", "pool"),
    sampled(
        [("redis", "fork", "prefork"), ("redis", "subprocess", "prefork"), ("rabbitmq", "fork", "threads")],
        [
            ("redis", "billiard", "prefork"),
            *(("redis", "fork", pool) for pool in ("threads", "solo", "gevent")),
            ("rabbitmq", "fork", "prefork"),
        ],
    ),
    indirect=["broker_url"],
)
def test_EMS_2_a_process_that_a_task_has_left_running_does_not_keep_its_dead_worker_alive(
    new_forking: Callable[..., Forking], broker_url: str, way: str, pool: str
) -> None:
    fleet = new_forking(broker_url)
    try:
        with (
            fleet.worker("watcher", pool="solo", queues=["none"]) as watcher,
            fleet.supervise(1, pool) as crew,
        ):
            watcher.wait_ready()
            crew.wait_ready()
            fleet.send("leaves", way)
            fleet.await_that(fleet.quarantine.list, "it is quarantined")
            (record,) = fleet.quarantine.list()
            assert record.strikes == 2
            noticed = {event["evidence"] for event in fleet.events("worker_lost")}
            assert noticed
            assert all('"noticed":"gone"' in evidence.replace(" ", "") for evidence in noticed)
            # Killed by their task, and by nothing else: none ended by itself.
            assert {death.status for death in crew.deaths} == {-signal.SIGKILL}, crew.log_text()[-5000:]
    finally:
        fleet.marks.repair()
        fleet.await_that(lambda: not fleet.survivors(), "what they left has ended")
