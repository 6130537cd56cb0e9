"""Messages of task protocol 1, Celery's and handmade ones, are convicted and failed as others are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import chord

from celery_poison.errors import GivenUp
from tests.apps.harness import Fleet


def _publish(fleet: Fleet, body: dict[str, Any]) -> None:
    """Publish what another producer has written by hand."""
    with fleet.app.producer_or_acquire() as producer:
        producer.publish(
            body,
            routing_key="celery",
            exchange="",
            serializer="json",
            declare=[fleet.app.amqp.queues["celery"]],
        )


def _handmade(task: str, **more: Any) -> dict[str, Any]:
    return {"task": f"fleet.{task}", "id": str(uuid4()), "args": [], "kwargs": {}, **more}


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_a_poison_of_protocol_1_is_convicted_at_its_second_death(new_fleet: Any, broker_url: str) -> None:
    fleet: Fleet = new_fleet(broker_url, task_protocol=1, poison_trial="cell")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    fleet.send("kill_group", 1)
    _publish(fleet, _handmade("kill_group", args=[2], expires=later))
    _publish(fleet, _handmade("kill_child", args=[3], eta=soon))
    healthy = [fleet.send("healthy", number) for number in range(10)]
    with fleet.supervise() as supervisor:
        supervisor.wait_ready()
        assert [result.get(timeout=90) for result in healthy] == [*range(10)]
        fleet.await_that(lambda: len(fleet.quarantine.list()) == 3, "all three are in quarantine")
        kept = fleet.quarantine.list()
        assert sorted((record.task, record.arguments, record.crashes) for record in kept) == [
            ("fleet.kill_child", "3", 2),
            ("fleet.kill_group", "1", 2),
            ("fleet.kill_group", "2", 2),
        ]
        # Each of the two kills at most two workers.
        assert len(supervisor.deaths) <= 4


def test_what_waits_for_a_message_of_protocol_1_hears_of_its_fail(new_fleet: Any, redis_url: str) -> None:
    fleet: Fleet = new_fleet(redis_url, task_protocol=1)
    tasks = fleet.app.tasks
    waits = chord([tasks["fleet.healthy"].s(1), tasks["fleet.kill_child"].s()])(tasks["fleet.healthy"].s())
    with fleet.worker() as worker:
        worker.wait_ready()
        fleet.await_that(lambda: fleet.quarantine.list(), "the member is in quarantine")
        (record,) = fleet.quarantine.list()
        (outcome,) = fleet.quarantine.fail([record.mid])
        assert outcome.done
        with pytest.raises(GivenUp):
            fleet.app.AsyncResult(record.id).get(timeout=60)
        with pytest.raises(Exception, match="given up in quarantine"):
            waits.get(timeout=60)
