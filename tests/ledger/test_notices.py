"""Notices for Flower: left by those who may send no events, taken once, and only while it is true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_poison.ledger import Keys, Ledger, notices
from celery_poison.ledger.notices import Fact, Notice
from celery_poison.model import Guilt, Start
from celery_poison.states import Event

START = Start("R", "0a1b.1", "w1@host/0a1b", 7, 1, 1, 0, "id", "shop.charge", "celery", 2, 5, 10, 1)


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns", "NAME"))


def test_a_candidate_is_told_once_and_of_several_facts_the_newest(ledger: Ledger) -> None:
    ledger.messages.crash("mid", START, cause="signal:9", shared=True)
    ledger.notices.leave([Notice("id", Fact.CANDIDATE, "old")])
    ledger.notices.leave([Notice("id", Fact.CANDIDATE, "new")])
    assert ledger.notices.take() == [Notice("id", Fact.CANDIDATE, "new")]
    assert ledger.notices.take() == []


@pytest.mark.parametrize("fact", [Fact.CANDIDATE, Fact.RELEASED])
def test_what_has_run_meanwhile_is_not_told_since_RETRY_would_stand_over_its_end(
    ledger: Ledger, fact: Fact
) -> None:
    ledger.messages.crash("mid", START, cause="signal:9", shared=True)
    ledger.notices.leave([Notice("id", fact, "", "mid")])
    ledger.messages.acquit("mid", START, Guilt.CLEARED)
    assert ledger.notices.take() == []


@pytest.mark.parametrize("fact", [Fact.FAILED, Fact.DISCARDED])
def test_a_message_that_was_given_up_is_told_of_and_one_in_quarantine_is_not(
    ledger: Ledger, fact: Fact
) -> None:
    ledger.quarantine.store("mid", START, cause="oom", reason="", fields={"body": "x"})
    ledger.notices.leave([Notice("id", fact, "story", "mid")])
    assert ledger.notices.take() == []
    ledger.decisions.give_up("mid", Event.FAILED, "ann", "")
    ledger.notices.leave([Notice("id", fact, "story", "mid")])
    assert ledger.notices.take() == [Notice("id", fact, "story", "mid")]


def test_where_nobody_listens_it_is_bounded_and_forgotten_in_the_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MAX_NOTICES", 2)
    for number in range(4):
        ledger.notices.leave([Notice(f"id{number}", Fact.FAILED, "")])
    assert len(ledger.notices.take()) == 2
    ledger.notices.leave([Notice("id", Fact.FAILED, "")])
    assert 0 < ledger.client.ttl(ledger.keys.untold) <= notices.LIFETIME
