"""The active monitor beside a Redis that hung, or that remembers old heartbeats only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_poison.fleet.monitor import Monitor
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.fleet import Fleet
from celery_poison.settings import Settings
from celery_poison.testing import RedisServer, wait_until

ACTIVATION = 1.0


class SlowLedger(Ledger):
    """A ledger whose answer to the next look at all workers takes its time."""

    takes = 0.0

    def __init__(self, client: Redis, keys: Keys) -> None:
        super().__init__(client, keys)
        watch = self.fleet.watch

        def slow(activation_ms: int) -> Fleet:
            seen = watch(activation_ms)
            time.sleep(self.takes)
            return seen

        self.fleet.watch = slow  # type: ignore[method-assign]


@pytest.fixture
def redis(new_server: Callable[..., RedisServer]) -> RedisServer:
    return new_server()


@pytest.fixture
def ledger(redis: RedisServer) -> SlowLedger:
    return SlowLedger(open_redis(redis.url()), Keys())


@pytest.fixture
def monitor(redis: RedisServer, ledger: SlowLedger) -> Monitor:
    app = Celery(broker=redis.url(), set_as_current=False)
    settings = Settings(heartbeat_interval=ACTIVATION / 4, activation_interval=ACTIVATION)
    return Monitor(app, ledger, settings, lambda: ("me", ""), lambda *_: None)


def _listen(monitor: Monitor, ledger: Ledger, alive: str) -> None:
    """Let the monitor hear a worker for as long as it takes to believe in a silence."""
    deadline = time.monotonic() + 1.5 * ACTIVATION

    def round_() -> bool:
        ledger.fleet.beat(alive, {"node": alive})
        monitor.round()
        return time.monotonic() > deadline

    wait_until(round_, what="listened for an activation interval")


def _lost(ledger: Ledger) -> list[Any]:
    return [key for key, _ in ledger.client.zscan_iter(ledger.keys.incidents)]


def test_EMS_1_a_silence_is_believed_by_a_monitor_that_could_hear(
    monitor: Monitor, ledger: SlowLedger
) -> None:
    _listen(monitor, ledger, "w")
    wait_until(lambda: monitor.round() or _lost(ledger), what="declared dead")


def test_EMS_1_a_silence_is_not_believed_when_the_answer_was_late(
    monitor: Monitor, ledger: SlowLedger
) -> None:
    _listen(monitor, ledger, "w")
    _go_silent(ledger)
    ledger.takes = ACTIVATION / 2
    monitor.round()
    assert not _lost(ledger)


def test_EMS_1_old_heartbeats_that_a_restarted_redis_remembers_are_not_believed(
    monitor: Monitor, ledger: SlowLedger, redis: RedisServer
) -> None:
    _listen(monitor, ledger, "w")
    _go_silent(ledger)
    ledger.client.save()
    redis.restart()
    monitor.round()
    assert not _lost(ledger)


def _go_silent(ledger: Ledger) -> None:
    """Make the last heartbeat of the worker one of long ago, as Redis has it."""
    ledger.client.zadd(ledger.keys.leases, {"w": 1})
