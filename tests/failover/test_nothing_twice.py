"""What runs long is started once, whoever sweeps beside it and however late its time comes (TP1-8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import pytest

from celery_poison.states import Event
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.broker.kit import Site

NewFleet = Callable[..., Fleet]

#: Ten workers start at once, and none of them is to be taken for dead.
UNHURRIED = {"poison_heartbeat_interval": 1.0, "poison_activation_interval": 5.0}

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")


def eager(visibility: float) -> dict[str, float]:
    """Return transport options under which everybody sweeps at every chance."""
    return {"visibility_timeout": visibility, "unacked_restore_throttle": 1, "unacked_restore_interval": 1}


class PlainNeighbour:
    """Plain kombu on the same Redis. It consumes a queue of its own, and sweeps all the time.

    That its sweeps take what they can get is seen by a message that nobody renews: whenever that was brought
    back, it is lost once more.
    """

    def __init__(self, url: str, visibility: float) -> None:
        self._site = Site(url, eager(visibility))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="neighbour")
        #: How often the lost message came back.
        self.swept = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._site.close()

    def _work(self) -> None:
        sweeper = self._site.receiver(boot_id="", queues=["elsewhere"])
        self._site.send("bait", queue="bait")
        self._lose_it()
        while not self._stop.is_set():
            with suppress(TimeoutError):
                sweeper.connection.drain_events(timeout=0.05)
            if self._site.raw.llen("bait"):
                self.swept += 1
                self._lose_it()

    def _lose_it(self) -> None:
        loser = self._site.receiver(queues=["bait"])
        loser.receive(1)
        loser.die()


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
        return [e for e in journal if e["event"] in (Event.DUPLICATE, Event.PARKED, Event.UNPARKED)]


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
            street.await_done("healthy", 3 * seconds + 30)
            assert not street.copies(), pool
            assert street.neighbour.swept >= 3, pool
        for street in streets.values():
            street.close()


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_TP1_8_a_task_that_never_yields_is_not_taken_for_dead(
    new_fleet: NewFleet, redis_url: str, pool: str
) -> None:
    fleet = new_fleet(redis_url, broker_transport_options=eager(1))
    with Street(fleet, pool, visibility=1) as street:
        street.open()
        street.send("busy", 5 * fleet.app.conf.poison_activation_interval)
        street.await_done("busy", 60)
        street.close()
    assert not fleet.quarantine.queries.incidents(), fleet.log_text()[-5000:]
