"""Policies that are changed while a worker runs (EMS-9)."""

from __future__ import annotations

import pytest

from celery_poison import Quarantine
from celery_poison.model import MessageRecord
from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet

POISON = "fleet.kill_child"


def _in_force(fleet: Fleet, version: int) -> None:
    told = f"policies of version {version} are in force"
    wait_until(lambda: told in fleet.log_text(), what=fleet.log_text)


def _quarantined(fleet: Fleet, id: str) -> MessageRecord:
    def found() -> list[MessageRecord]:
        return [record for record in fleet.quarantine.list() if record.id == id]

    wait_until(found, what=fleet.log_text)
    return found()[0]


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_EMS_9_a_running_worker_acts_on_a_changed_policy(fleet: Fleet) -> None:
    quarantine = Quarantine(fleet.app)
    with fleet.worker() as worker:
        worker.wait_ready()
        _in_force(fleet, quarantine.set_policy(POISON, {"max_crashes": 1}).version)
        assert _quarantined(fleet, fleet.send("kill_child").id).crashes == 1
        _in_force(fleet, quarantine.unset_policy(POISON).version)
        assert _quarantined(fleet, fleet.send("kill_child").id).crashes == 2

        _in_force(fleet, quarantine.set_policy("*", {"max_payload_bytes": 200}).version)
        large = fleet.send("unpickled", "x" * 500)
        kept = _quarantined(fleet, large.id)
        assert (kept.cause, kept.crashes) == ("payload", 0)
        assert fleet.send("healthy", 7).get(timeout=PATIENCE) == 7


def test_EMS_9_a_worker_that_starts_later_knows_the_newest_policy_before_its_first_message(
    fleet: Fleet,
) -> None:
    Quarantine(fleet.app).set_policy("*", {"max_crashes": 5})
    Quarantine(fleet.app).set_policy("*", {"max_crashes": 1})
    sent = fleet.send("kill_child")
    with fleet.worker():
        assert _quarantined(fleet, sent.id).crashes == 1


def test_EMS_9_garbage_in_redis_is_counted_and_told_once_and_tasks_go_on(
    fleet: Fleet,
) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    with fleet.worker() as worker:
        worker.wait_ready()
        ledger.client.hset(ledger.keys.policy, "fleet.healthy", "{")
        ledger.client.hset(ledger.keys.policy, POISON, '{"max_crashes": -1, "tomorrows_option": 1}')
        _in_force(fleet, Quarantine(fleet.app).set_policy(POISON, {"max_failures": 9}).version)
        workers = fleet.quarantine.queries.workers
        wait_until(lambda: [w.ledger_errors for w in workers(1000)] == [3], what=fleet.log_text)
        assert fleet.send("healthy", 7).get(timeout=PATIENCE) == 7
        assert _quarantined(fleet, fleet.send("kill_child").id).crashes == 2
    assert fleet.log_text().count("in Redis is ignored: it is no JSON object") == 1
    assert fleet.log_text().count("max_crashes is ignored: ") == 1
    assert fleet.log_text().count("unknown option tomorrows_option") == 1
