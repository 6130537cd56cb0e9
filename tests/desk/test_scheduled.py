"""Releases that the active monitor makes later, and again: for causes that pass by themselves (NEW-6)."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison.desk.care import BadCare
from celery_poison.fleet.departures import Departures
from celery_poison.headers import MID
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.desk.test_destinations import DEAD


def due(fleet: Fleet, keeper: Keeper, mid: str) -> int:
    """Let its time come, and the monitor look; return how many messages have left."""
    keeper.ledger.client.zadd(keeper.ledger.keys.outgoing, {mid: 0}, xx=True)
    return Departures(fleet.app, keeper.ledger).round()


def scheduled(fleet: Fleet, mid: str, **how: Any) -> Any:
    how = {"after": 3600, "actor": "ann", "note": "their API is down", **how}
    (outcome,) = fleet.quarantine.schedule([mid], **how)
    return outcome


def test_NEW_6_a_scheduled_message_is_released_so_many_times_and_stays_then(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert scheduled(fleet, mid, times=2).done
    assert Departures(fleet.app, keeper.ledger).round() == 0, "its time has not come"
    assert "2 times at most, as ann has scheduled (their API is down)" in fleet.quarantine.detail(mid).story

    assert due(fleet, keeper, mid) == 1
    assert fleet.quarantine.get(mid).probation
    message = keeper.receive()
    assert message.headers[MID] == mid
    keeper.keep(message)  # it comes back
    back = fleet.quarantine.get(mid)
    assert back.retry_at and (back.releases_left, back.releases, back.actor) == (1, 1, "ann")

    assert due(fleet, keeper, mid) == 1
    keeper.keep(keeper.receive())
    back = fleet.quarantine.get(mid)
    assert (back.retry_at, back.releases_left, back.releases, back.actor) == (None, 0, 2, "")
    assert due(fleet, keeper, mid) == 0
    assert [(e["actor"], e["note"]) for e in fleet.events("released")] == [("ann", "their API is down")] * 2
    (entry,) = fleet.events("release_scheduled")
    assert entry["note"] == "in 3600 s, 2 times at most: their API is down"


@pytest.mark.parametrize("act", ["unschedule", "release", "discard"])
def test_NEW_6_what_is_scheduled_can_be_taken_back_and_a_decision_ends_it(
    act: str, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    scheduled(fleet, mid, times=3)
    assert getattr(fleet.quarantine, act)([mid], actor="bob")[0].done
    if act == "release":
        keeper.keep(keeper.receive())
    if act == "discard":
        assert due(fleet, keeper, mid) == 0 and fleet.quarantine.restore([mid])[0].done
    record = fleet.quarantine.get(mid)
    assert (record.state, record.retry_at, record.releases_left) == ("NDLV", None, 0)
    assert due(fleet, keeper, mid) == 0
    (again,) = fleet.quarantine.unschedule([mid])
    assert not again.done and "no release of the message is scheduled" in again.error


def test_NEW_6_the_newest_schedule_holds_and_what_cannot_be_released_is_refused(
    fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    scheduled(fleet, mid, times=3)
    assert scheduled(fleet, mid, times=1).done and fleet.quarantine.get(mid).releases_left == 1
    assert keeper.ledger.client.zcard(keeper.ledger.keys.outgoing) == 1

    healthy = fleet.app.tasks.pop("fleet.healthy")
    assert "no task 'fleet.healthy' is registered" in scheduled(fleet, mid).error
    assert scheduled(fleet, mid, force=True).done
    fleet.app.tasks.register(healthy)
    leaves = keeper.send_and_keep("fleet.healthy", 2, goes=DEAD)
    assert "goes to the queue dead.letters" in scheduled(fleet, leaves).error
    for wrong in ({"after": 0}, {"times": 0}):
        with pytest.raises(BadCare):
            scheduled(fleet, mid, **wrong)
