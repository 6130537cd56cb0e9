"""Workers on RabbitMQ, whose versions differ: POISON_TEST_RABBITMQ names another than the installed one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection

from celery_poison.broker.publish import depth
from celery_poison.broker.rabbitmq import counts_no_nack, version_of
from tests.apps.harness import Fleet

LIMIT = 2


@pytest.fixture
def version(rabbit_url: str) -> Iterator[tuple[int, int]]:
    with Connection(rabbit_url) as connection:
        yield version_of(connection.connection)


@pytest.fixture
def fleet(new_fleet: Callable[..., Fleet], rabbit_url: str) -> Fleet:
    """On a quorum queue that gives a message back twice, and then drops it."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": LIMIT}
    queues = {"celery": {"exchange": "celery", "routing_key": "celery", "queue_arguments": arguments}}
    return new_fleet(rabbit_url, task_queues=queues, worker_prefetch_multiplier=4)


def _waiting(fleet: Fleet) -> int:
    with fleet.app.connection_for_read() as connection:
        return depth(connection, "celery")


def _counts(fleet: Fleet) -> list[Any]:
    """What the broker has counted of each message that waits; they are put back."""
    with fleet.app.connection_for_read() as connection, connection.channel() as channel:
        taken = [channel.basic_get("celery") for _ in range(_waiting(fleet))]
        return [message.headers.get("x-delivery-count") for message in taken]


def test_NEW_30_what_a_pause_or_a_shutdown_puts_back_costs_no_delivery_limit(
    fleet: Fleet, version: tuple[int, int]
) -> None:
    fleet.quarantine.pause_queue("celery", force=True)
    with fleet.worker(concurrency=1) as worker:
        worker.wait_ready()
        fleet.quarantine.resume_queue("celery")
        fleet.send("gated", 0)
        fleet.await_that(lambda: fleet.marks.all("gated", "start"), "it holds the only slot")
        sent = [fleet.send("healthy", n) for n in range(3)]
        for _ in range(LIMIT + 1 if counts_no_nack(version) else 1):
            fleet.await_that(lambda: not _waiting(fleet), "prefetched")
            fleet.quarantine.pause_queue("celery")
            fleet.await_that(lambda: _waiting(fleet) == 3, "put back")
            fleet.quarantine.resume_queue("celery")
        fleet.await_that(lambda: not _waiting(fleet), "prefetched")
        worker.send_signal(signal.SIGTERM)
        fleet.await_that(lambda: "Warm shutdown" in worker.log_text(), "it leaves")
        fleet.marks.open_gate()
        worker.wait()
    fleet.await_that(lambda: _waiting(fleet) == 3, "put back by the shutdown")
    # On older versions, each of both ways of giving back costs one of them.
    assert _counts(fleet) == [None if counts_no_nack(version) else 2] * 3
    assert fleet.marks.count("healthy", "start") == {}, sent
