"""Workers on RabbitMQ, whose versions differ: POISON_TEST_RABBITMQ names another than the installed one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_poison.broker.amqp.versions import counts_no_nack, filled_by_delays, version_of
from celery_poison.broker.kinds import depth
from celery_poison.desk.survey import overview
from celery_poison.portrait import Condition
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
    with fleet.worker(concurrency=1) as worker:
        fleet.send("gated", 0)
        fleet.await_that(lambda: fleet.marks.all("gated", "start"), "it holds the only slot")
        sent = [fleet.send("healthy", n) for n in range(3)]
        for _ in range(LIMIT + 1 if counts_no_nack(version) else 1):
            fleet.await_that(lambda: not _waiting(fleet), "prefetched")
            fleet.quarantine.pause_queue("celery")
            fleet.await_that(lambda: _waiting(fleet) == 3, "put back")
            fleet.quarantine.resume_queue("celery")
        fleet.await_that(lambda: not _waiting(fleet), "prefetched")
        assert worker.log_text().count("fill this worker") == 1, "Celery delays nothing by a direct exchange"
        worker.send_signal(signal.SIGTERM)
        fleet.await_that(lambda: "Warm shutdown" in worker.log_text(), "it leaves")
        fleet.marks.open_gate()
        worker.wait()
    fleet.await_that(lambda: _waiting(fleet) == 3, "put back by the shutdown")
    # On older versions, each of both ways of giving back costs one of them.
    assert _counts(fleet) == [None if counts_no_nack(version) else 2] * 3
    assert fleet.marks.count("healthy", "start") == {}, sent


def test_NEW_30_status_names_a_worker_that_messages_with_a_countdown_fill(fleet: Fleet) -> None:
    for n in range(4):
        fleet.send("healthy", n, countdown=3600)
    with fleet.worker(concurrency=1):
        fleet.await_that(lambda: not _waiting(fleet), "prefetched")
        fleet.send("healthy", 4)
        fleet.await_that(
            lambda: [each for each in overview(fleet.app).warnings if "is full" in each], "is named"
        )
        (worker,) = fleet.quarantine.queries.workers(60_000)
        assert "nothing more of 1 queue: it is full of 4 messages with an ETA" in worker.filled
        assert worker.condition() is Condition.WORKING, "the pool is free, and nobody need restart it"


@pytest.mark.parametrize(
    ("settings", "until_4_2", "since_4_3"),
    [
        ({}, [], ["celery"]),
        ({"task_default_queue_type": "quorum"}, ["celery"], ["celery"]),
        ({"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}, [], []),
    ],
    ids=["classic", "quorum, direct", "quorum, topic"],
)
def test_NEW_30_whether_delayed_messages_fill_a_worker_is_read_from_version_and_settings(
    rabbit_url: str,
    version: tuple[int, int],
    settings: dict[str, str],
    until_4_2: list[str],
    since_4_3: list[str],
) -> None:
    app = Celery(broker=rabbit_url, set_as_current=False)
    app.conf.update(settings)
    with app.connection_for_read() as connection:
        connection.connect()
        assert filled_by_delays(app, connection) == (since_4_3 if version >= (4, 3) else until_4_2)
