"""Notices for Flower: left by those who may send no events, taken once, and only while it is true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_poison.ledger import Keys, Ledger, fleet
from celery_poison.ledger.fleet import Fact, Notice, leave_notices, take_notices
from celery_poison.model import Start
from celery_poison.states import Event

START = Start("R", "0a1b.1", "w1@host/0a1b", 7, 1, 1, 0, "id", "shop.charge", "celery", 2, 5, 10, 1)


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns", "NAME"))


def test_a_candidate_is_told_once_and_of_several_facts_the_newest(ledger: Ledger) -> None:
    ledger.crash("mid", START, cause="signal:9", shared=True)
    leave_notices(ledger, [Notice("id", Fact.CANDIDATE, "old")])
    leave_notices(ledger, [Notice("id", Fact.CANDIDATE, "new")])
    assert take_notices(ledger) == [Notice("id", Fact.CANDIDATE, "new")]
    assert take_notices(ledger) == []


@pytest.mark.parametrize("fact", [Fact.CANDIDATE, Fact.RELEASED])
def test_what_has_run_meanwhile_is_not_told_since_RETRY_would_stand_over_its_end(
    ledger: Ledger, fact: Fact
) -> None:
    ledger.crash("mid", START, cause="signal:9", shared=True)
    leave_notices(ledger, [Notice("id", fact, "", "mid")])
    ledger.acquit("mid", START, final=True)
    assert take_notices(ledger) == []


@pytest.mark.parametrize("fact", [Fact.FAILED, Fact.DISCARDED])
def test_a_message_that_was_given_up_is_told_of_and_one_in_quarantine_is_not(
    ledger: Ledger, fact: Fact
) -> None:
    ledger.quarantine("mid", START, cause="oom", reason="", fields={"body": "x"})
    leave_notices(ledger, [Notice("id", fact, "story", "mid")])
    assert take_notices(ledger) == []
    ledger.give_up("mid", Event.FAILED, "ann", "")
    leave_notices(ledger, [Notice("id", fact, "story", "mid")])
    assert take_notices(ledger) == [Notice("id", fact, "story", "mid")]


def test_where_nobody_listens_it_is_bounded_and_forgotten_in_the_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MAX_NOTICES", 2)
    for number in range(4):
        leave_notices(ledger, [Notice(f"id{number}", Fact.FAILED, "")])
    assert len(take_notices(ledger)) == 2
    leave_notices(ledger, [Notice("id", Fact.FAILED, "")])
    assert 0 < ledger.client.ttl(ledger.keys.untold) <= fleet.LIFETIME
