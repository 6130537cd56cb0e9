"""What runs long is started once, whoever sweeps beside it and however late its time comes (TP1-8)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import pytest

from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet
from tests.broker.neighbour import PlainNeighbour, eager

NewFleet = Callable[..., Fleet]

#: Ten workers start at once, and none of them is to be taken for dead.
UNHURRIED = {"poison_heartbeat_interval": 1.0, "poison_activation_interval": 5.0}

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")


class Street:
    """Two workers of one kind of pool, their neighbour, and what they have to do."""

    def __init__(self, fleet: Fleet, pool: str, visibility: float) -> None:
        self.fleet, self.sent = fleet, 0
        self.neighbour = PlainNeighbour(fleet.broker_url, visibility)
        self._workers = [fleet.worker(f"{pool}{n}", pool, concurrency=1) for n in (1, 2)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for worker in self._workers:
                stack.enter_context(worker)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def open(self) -> None:
        for worker in self._workers:
            worker.wait_ready()
        self._stack.enter_context(self.neighbour)

    def close(self) -> None:
        """Begin to shut down; leaving the context waits for it."""
        for worker in self._workers:
            worker.terminate()

    def send(self, task: str, seconds: float, **options: float) -> None:
        self.fleet.send(task, self.sent, seconds, **options)
        self.sent += 1

    def await_done(self, task: str, timeout: float) -> None:
        """Wait until everything ended; nothing may have been started twice at any time."""
        marks = self.fleet.marks

        def done() -> bool:
            starts = marks.count(task, "start")
            assert set(starts.values()) <= {1}, f"{starts}\n{self.fleet.log_text()[-5000:]}"
            return len(marks.count(task, "end")) == self.sent

        wait_until(done, timeout, what=lambda: self.fleet.log_text()[-5000:])

    def copies(self) -> list[dict[str, str]]:
        """Return what the journal tells of a second delivery."""
        journal = self.fleet.quarantine.queries.journal(count=100_000)
        return [e for e in journal if e["event"] in ("duplicate", "parked", "unparked")]


@pytest.mark.parametrize(
    ("visibility", "seconds"), [(1, 7), pytest.param(5, 60, marks=pytest.mark.matrix)], ids=["7 s", "60 s"]
)
def test_TP1_8_a_task_many_times_longer_than_the_visibility_timeout_starts_once_on_every_pool(
    new_fleet: NewFleet, new_redis_url: Callable[[], str], visibility: float, seconds: float
) -> None:
    settings = {"broker_transport_options": eager(visibility), "worker_prefetch_multiplier": 2, **UNHURRIED}
    with ExitStack() as stack:
        streets = {}
        for pool in POOLS:
            fleet = new_fleet(new_redis_url(), **settings)
            streets[pool] = stack.enter_context(Street(fleet, pool, visibility))
        for street in streets.values():
            street.open()
        for street in streets.values():
            # Its time comes after many visibility timeouts: plain Celery delivers it again and again.
            street.send("healthy", 0.1, countdown=seconds * 0.75)
            street.send("healthy", seconds)
            for _ in range(4):
                street.send("healthy", 0.1)  # one of them may wait behind the long one
        for pool, street in streets.items():
            street.await_done("healthy", 3 * seconds + PATIENCE)
            assert not street.copies(), pool
            assert street.neighbour.swept >= 3, pool
        for street in streets.values():
            street.close()


@pytest.mark.parametrize("pool", sampled(["gevent"], ["eventlet"]))
def test_TP1_8_a_task_that_never_yields_is_not_taken_for_dead(
    new_fleet: NewFleet, redis_url: str, pool: str
) -> None:
    fleet = new_fleet(redis_url, broker_transport_options=eager(1))
    with Street(fleet, pool, visibility=1) as street:
        street.open()
        street.send("busy", 5 * fleet.app.conf.poison_activation_interval)
        street.await_done("busy", PATIENCE)
        street.close()
    assert not fleet.quarantine.queries.incidents(), fleet.log_text()[-5000:]
