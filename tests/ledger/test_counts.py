"""The totals that metrics are made of: each changed in the step that it counts, and once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.fleet import RECOVERY_BOUNDS, Silence
from celery_poison.model import Guilt, Start
from tests import PATIENCE

ID, MID, WORKER = "id", "mid", "w1@host/0a1b"


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns", "NAME"))


def _start(number: int) -> Start:
    return Start("R", f"0a1b.{number}", WORKER, 7, 1, 1, 0, ID, "shop.charge", "celery", 2, 5, 10, 1)


def _totals(ledger: Ledger) -> dict[str, int]:
    return ledger.read.counts()


def test_a_crash_is_counted_by_its_cause_and_not_again_when_it_is_told_again(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.messages.crash(MID, _start(1), cause="signal:9", shared=False)
    ledger.messages.crash(MID, _start(2), cause="oom", shared=False)
    assert _totals(ledger) == {"crashed:signal:9": 1, "crashed:oom": 1}


def test_deaths_are_counted_by_day_and_task_and_not_again_when_they_are_told_again(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.messages.crash(MID, _start(1), cause="signal:9", shared=False)
    ledger.messages.crash(MID, _start(2), cause="oom", shared=False)
    today = ledger.read.now_ms() // 86_400_000
    (key, deaths), *others = ledger.read.deaths_by_day().items()
    assert (key[1], deaths, others) == ("shop.charge", 2, [])
    assert key[0] in (today, today - 1)


def test_deaths_of_fourteen_days_are_kept_and_fifty_tasks_of_each_have_a_name(ledger: Ledger) -> None:
    today = ledger.read.now_ms() // 86_400_000
    old = {f"{today - 14} shop.old": 3, f"{today - 13} shop.old": 5}
    ledger.client.hset(ledger.keys.deaths_by_day, mapping=old)
    for number in range(53):
        start = _start(number)._replace(task=f"shop.{'x' * 200 if number == 7 else number}")
        ledger.messages.crash(f"m{number}", start._replace(id=f"t{number}"), cause="oom", shared=False)
    found = ledger.read.deaths_by_day()
    assert (today - 14, "shop.old") not in found and found[today - 13, "shop.old"] == 5
    named = [task for day, task in found if day >= today and task]
    assert len(named) == 50 and max(map(len, named)) == 120
    assert sum(number for (day, task), number in found.items() if day >= today and not task) == 3


def test_NEW_14_deaths_of_a_day_are_counted_by_the_hour_and_the_last_has_its_time(ledger: Ledger) -> None:
    slot = ledger.read.now_ms() // 300_000
    old = {f"lately {slot - number}": 3 for number in (13, 286, 289)}
    ledger.client.hset(ledger.keys.deaths_by_day, mapping={**old, "lately x": 9})
    for _ in range(2):
        ledger.messages.crash(MID, _start(1), cause="signal:9", shared=False)
    ledger.messages.crash(MID, _start(2), cause="oom", shared=False)
    now = ledger.read.now_ms() / 1000
    lately = ledger.read.deaths_lately(now)
    assert lately.last and now - PATIENCE < lately.last <= now
    assert (lately.by_hour[-1], lately.by_hour[-2], lately.by_hour[0], sum(lately.by_hour)) == (2, 3, 3, 8)
    assert f"lately {slot - 289}".encode() not in ledger.client.hgetall(ledger.keys.deaths_by_day)
    assert len(ledger.read.deaths_by_day()) == 1


def test_a_quarantine_is_counted_once(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.quarantine.store(MID, _start(1), cause="exit:7", reason="", fields={"body": "x"})
    assert _totals(ledger) == {"quarantined:exit:7": 1}


def test_a_candidate_that_ends_alive_is_counted_as_cleared(ledger: Ledger) -> None:
    ledger.messages.acquit(MID, _start(1), Guilt.CLEARED)
    assert _totals(ledger) == {}, "a message without a history is acquitted of nothing"
    ledger.messages.crash(MID, _start(1), cause="oom", shared=True)
    ledger.messages.acquit(MID, _start(2), Guilt.CLEARED)
    assert _totals(ledger)["cleared"] == 1


def test_a_start_that_survived_its_burial_is_counted_as_cleared(ledger: Ledger) -> None:
    ledger.messages.crash(MID, _start(1), cause="worker_lost", shared=True)
    ledger.messages.revoke_strike(MID, _start(1).token, ID)
    assert _totals(ledger)["cleared"] == 1


def test_a_recovery_is_counted_in_its_bucket_from_the_workers_death_on(ledger: Ledger) -> None:
    ledger.fleet.beat(WORKER, {"node": "w1@host"}, first=True)
    led = ledger.fleet.lead("other", 1000)
    assert led is not None
    for number, seconds in enumerate((0, 4, 10_000)):
        incident = f"i{number}"
        if not number:
            ledger.fleet.declare_dead(WORKER, incident, Silence.SILENT, 0, led[0])
        else:
            died_at = ledger.read.now_ms() - seconds * 1000
            ledger.client.hset(ledger.keys.incident(incident), "died_at", died_at)
        ledger.fleet.close_incident(WORKER, incident, flagged=0, put_back=0, returned={}, fence=led[0])
    totals = _totals(ledger)
    assert 10_004_000 <= totals.pop("recovered_ms") < 10_010_000
    assert totals == {f"recovered:{RECOVERY_BOUNDS[0]}": 1, "recovered:5": 1, "recovered:inf": 1}
