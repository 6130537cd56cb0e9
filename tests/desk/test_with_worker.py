"""What only a real worker shows: what it keeps of a message, and that it runs what was released."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import chain

from celery_poison import Quarantine
from celery_poison.ledger.journal_read import position
from celery_poison.plugin import plugin_of
from celery_poison.quarantine import Care
from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper


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


def test_SAP_3_the_quarantine_has_the_name_that_is_set(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    named = new_fleet(redis_url, poison_quarantine_queue="ward")
    named.send("os_exit")
    with named.worker():
        mid = caught(named)
    client = plugin_of(named.app).open_ledger().client
    assert client.zrange("{poison}:quarantine:ward", 0, -1) == [mid.encode()]
    assert not Quarantine(new_fleet(redis_url).app).list(), "another name is another quarantine"


def test_NEW_7_the_journal_keeps_about_as_many_entries_as_are_set(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    fleet = new_fleet(redis_url, poison_journal_maxlen=1000)
    for _ in range(1500):
        fleet.quarantine.block_task("another", force=True)
    with fleet.worker():
        fleet.send("healthy", 1).get(timeout=PATIENCE)
        ledger = plugin_of(fleet.app).open_ledger()
        wait_until(lambda: fleet.events("finished"))
    assert 1000 <= ledger.client.xlen(ledger.keys.journal) < 1300, "Redis trims by blocks of a hundred"


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


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_6_a_canary_that_dies_keeps_the_others_back_and_one_that_holds_lets_them_go(
    fleet: Fleet, keeper: Keeper
) -> None:
    mids = [keeper.send_and_keep("fleet.kill_child", n) for n in range(3)]
    told: list[str] = []
    with fleet.worker() as worker:
        care = Care(canary=True, soak=PATIENCE)  # not waited for: it dies at once
        first, *others = fleet.quarantine.release(mids, care=care, on_progress=told.append)
        assert first.done and not any(outcome.done for outcome in others)
        assert others[0].error.startswith("not released: the canary died again or came back: " + first.id)
        wait_until(lambda: len(fleet.quarantine.list()) == 3, what=worker.log_text)
        assert set(fleet.marks.count("kill_child", "start")) == {0}

        fleet.marks.repair()
        outcomes = fleet.quarantine.release(
            mids, care=Care(canary=True, soak=20, max_waiting=1), on_progress=told.append
        )
        assert all(outcome.done for outcome in outcomes), (outcomes, worker.log_text())
        wait_until(lambda: not fleet.quarantine.list(candidates=True), what=worker.log_text)
    assert fleet.marks.count("kill_child", "end") == {0: 1, 1: 1, 2: 1}
    ended = next(entry["at"] for entry in fleet.events("finished") if entry["mid"] == mids[0])
    later = [entry["at"] for entry in fleet.events("released") if entry["mid"] != mids[0]]
    assert len(later) == 2 and min(map(position, later)) > position(ended)
    assert f"the canary {first.id} ended well" in told
