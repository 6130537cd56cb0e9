"""No envelope ends a worker or costs it a slot, and nothing is silent, where plain Celery dies (NEW-5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from kombu import Connection

from celery_poison.broker.kinds import depth
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew
from tests.worker.envelopes import Envelope, envelopes

HEALTHY = 42


def _post(crew: Crew, wanted: list[Envelope]) -> list[Envelope]:
    """Put envelopes into the queue as an attacker does, healthy messages among them; return what went in."""
    sent, every = [], max(1, len(wanted) // HEALTHY)
    with crew.app.connection_for_write() as connection:
        for number, envelope in enumerate(wanted):
            if number % every == 0 and number // every < HEALTHY:
                crew.send("healthy", number // every)
            if push(connection, envelope):
                sent.append(envelope)
    return sent


def push(connection: Connection, envelope: Envelope) -> bool:
    channel: Any = connection.default_channel
    if connection.transport.driver_type == "redis":
        channel.client.lpush("celery", envelope.item())
        return True
    headers, body = envelope.headers, envelope.body
    with suppress(Exception):  # AMQP has no such value
        options = {"correlation_id": envelope.id}
        message = channel.prepare_message(body, 0, "application/json", "utf-8", headers, options)
        channel.basic_publish(message, exchange="", routing_key="celery")
        return True
    return False


def _left_over(crew: Crew, sent: list[Envelope]) -> list[str]:
    """Return the names of those that did not run, failed for nobody, and are not in quarantine."""
    ran = {str(mark.n) for mark in crew.marks.all() if mark.task in ("counted", "told")}
    kept = crew.quarantine.list()
    bodies, ids = {crew.quarantine.message(record.mid).body for record in kept}, {each.id for each in kept}
    unseen = [e for e in sent if str(e.number) not in ran and e.body not in bodies and e.id not in ids]
    return [each.name for each in unseen if not crew.app.AsyncResult(each.id).failed()]


def is_drained(crew: Crew) -> bool:
    """Whether nothing of the queue is left with the broker, acknowledged or not."""
    with crew.app.connection_for_read() as connection:
        is_redis = connection.transport.driver_type == "redis"
        return not depth(connection, "celery") and not (
            is_redis and connection.default_channel.client.hlen("unacked")
        )


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "solo", "gevent"]))
def test_NEW_5_no_envelope_ends_a_worker_or_costs_it_a_slot(
    new_crew: Callable[..., Crew], broker_url: str, pool: str
) -> None:
    # A busy machine may silence a worker for a second: taken for dead, it would keep ends for ten minutes.
    crew = new_crew(broker_url, poison_activation_interval=PATIENCE)
    sent = _post(crew, [*envelopes()])
    assert len(sent) > 300
    with crew.supervise(1, pool, 2) as fleet:
        crew.await_that(lambda: crew.done() == HEALTHY, "healthy tasks do not run")
        crew.await_that(lambda: is_drained(crew), "some are not acknowledged")
        crew.await_that(crew.nothing_runs, "some starts stay on record")
        last = [crew.send("healthy", HEALTHY + n) for n in range(4)]
        assert [each.get(timeout=PATIENCE) for each in last] == [42, 43, 44, 45], "a slot is lost"
        assert not fleet.deaths
    assert is_drained(crew), "a worker that left gave some back"
    assert not _left_over(crew, sent)
    assert not crew.quarantine.list(candidates=True)
