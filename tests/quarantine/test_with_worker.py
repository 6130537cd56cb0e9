"""What only a real worker shows: what it keeps of a message, and that it runs what was released."""

from __future__ import annotations

import pytest
from celery import chain

from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.quarantine.keeping import Keeper


def caught(fleet: Fleet) -> str:
    wait_until(fleet.quarantine.list, what=lambda: fleet.log_text()[-4000:])
    (record,) = fleet.quarantine.list()
    return record.mid


def test_SAP_7_the_chain_of_a_pickled_poison_fails_with_it_though_nobody_opens_its_body(fleet: Fleet) -> None:
    poison, healthy = fleet.app.tasks["fleet.os_exit"], fleet.app.tasks["fleet.healthy"]
    last = chain(poison.si().set(serializer="pickle"), healthy.si(1).set(serializer="pickle"))()
    with fleet.worker():
        (outcome,) = fleet.quarantine.fail([caught(fleet)], actor="ann")
    assert outcome.done, outcome
    with pytest.raises(Exception, match="given up in quarantine"):
        last.get(timeout=PATIENCE)


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_SAP_7_a_worker_runs_what_was_released_with_all_its_headers(fleet: Fleet, keeper: Keeper) -> None:
    result = fleet.send("healthy", 7, compression="gzip", headers={"x-tenant": "acme"}, priority=3)
    mid = keeper.keep(keeper.receive())
    (outcome,) = fleet.quarantine.release([mid], actor="ann")
    assert outcome.done, outcome
    with fleet.worker() as worker:
        assert result.get(timeout=PATIENCE) == 7
        wait_until(lambda: not fleet.quarantine.list(candidates=True), what=worker.log_text)
    events = [entry["event"] for entry in fleet.quarantine.history(result.id)]
    assert events[-3:] in (["released", "finished", "cleared"], ["released", "cleared", "finished"])


def test_SAP_7_an_errback_runs_on_a_real_worker(fleet: Fleet, keeper: Keeper) -> None:
    fleet.send("os_exit", link_error=fleet.app.tasks["fleet.healthy"].s())
    mid = keeper.keep(keeper.receive())
    id = fleet.quarantine.get(mid).id
    fleet.quarantine.fail([mid])
    with fleet.worker() as worker:
        wait_until(lambda: fleet.marks.count("healthy", "end")[id] == 1, what=worker.log_text)
