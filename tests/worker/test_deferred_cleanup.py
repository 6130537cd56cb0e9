"""Acknowledged starts are forgotten, whenever they arrive, and what never arrives is counted."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import FIRST, Ended, Guilt, Start
from celery_poison.settings import Settings
from celery_poison.worker import inflight as module
from celery_poison.worker.inflight import Acknowledged, DeferredCleanup
from celery_poison.worker.lease import Incarnation
from celery_poison.worker.outcome import Outcomes
from celery_poison.worker.recorder import Ticket
from tests.sites import on_site


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys("ns"))


@pytest.fixture
def deferred_cleanup(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> DeferredCleanup:
    monkeypatch.setattr(module, "DELAY", 0.0)
    return DeferredCleanup(ledger)


def arrive(ledger: Ledger, *numbers: int) -> None:
    """What the processes that ran these tasks have sent reaches Redis."""
    for n in numbers:
        start = Start("R", f"b.{n}", "w1@h/b", 7, 1, 1, 0, f"id{n}", "t", "celery", 2, 5, 1, 1)
        ledger.client.hset(ledger.keys.running, f"m{n}", start.encode())
        ledger.client.hset(ledger.keys.done, f"b.{n}", "D")


def on_record(ledger: Ledger) -> tuple[int, int]:
    client: redis.Redis = ledger.client
    return int(client.hlen(ledger.keys.running)), int(client.hlen(ledger.keys.done))  # type: ignore[arg-type]


def acknowledge(deferred_cleanup: DeferredCleanup, *numbers: int) -> None:
    for n in numbers:
        deferred_cleanup.add(Acknowledged(0.0, f"m{n}", f"b.{n}", f"id{n}", "t"))


def test_what_arrives_behind_its_settlement_leaves_nothing_behind_and_is_not_counted(
    ledger: Ledger, deferred_cleanup: DeferredCleanup
) -> None:
    acknowledge(deferred_cleanup, 1, 2, 3)
    arrive(ledger, 2)
    deferred_cleanup.clean_up()
    arrive(ledger, 1, 3)
    assert on_record(ledger) == (2, 2)
    deferred_cleanup.clean_up()
    assert (on_record(ledger), deferred_cleanup.missing) == ((0, 0), 0)


def test_what_never_arrives_is_counted_once(ledger: Ledger, deferred_cleanup: DeferredCleanup) -> None:
    acknowledge(deferred_cleanup, 1, 2)
    arrive(ledger, 2)
    for _ in range(4):
        deferred_cleanup.clean_up()
    assert deferred_cleanup.missing == 1


def test_at_the_end_nobody_waits_for_what_is_late(ledger: Ledger, deferred_cleanup: DeferredCleanup) -> None:
    acknowledge(deferred_cleanup, 1)
    deferred_cleanup.clean_up()
    acknowledge(deferred_cleanup, 2)
    arrive(ledger, 1)
    deferred_cleanup.clean_up(everything=True)
    assert (on_record(ledger), deferred_cleanup.missing) == ((0, 0), 1)


def test_a_ledger_that_is_away_loses_nothing(
    ledger: Ledger, deferred_cleanup: DeferredCleanup, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledge(deferred_cleanup, 1)
    deferred_cleanup.clean_up()
    acknowledge(deferred_cleanup, 2)
    with monkeypatch.context() as cut:
        cut.setattr(ledger.client.connection_pool, "get_connection", _refused)
        for _ in range(2):
            with pytest.raises(LedgerUnavailable):
                deferred_cleanup.clean_up()
    arrive(ledger, 1, 2)
    deferred_cleanup.clean_up()
    assert (on_record(ledger), deferred_cleanup.missing) == ((0, 0), 0)


def test_a_ledger_that_goes_away_between_two_answers_loses_nothing(
    ledger: Ledger, deferred_cleanup: DeferredCleanup, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    survived = ledger.messages.revoke_strike

    def tell(mid: str, token: str, id: str, guilt: Guilt) -> None:
        if len(told) == 1:
            told.append("cut")
            raise LedgerUnavailable("cut")
        told.append(mid)
        survived(mid, token, id, guilt)

    monkeypatch.setattr(ledger.messages, "revoke_strike", tell)
    acknowledge(deferred_cleanup, 1, 2, 3)
    with pytest.raises(LedgerUnavailable):
        deferred_cleanup.clean_up()
    deferred_cleanup.clean_up()
    arrive(ledger, 1, 2, 3)
    deferred_cleanup.clean_up()
    assert told == ["m1", "cut", "m2", "m3"]
    # The first was looked for again meanwhile, in vain.
    assert (on_record(ledger), deferred_cleanup.missing) == ((1, 1), 1)


def test_NEW_14_one_that_runs_elsewhere_by_now_stops_no_other_and_was_not_unguarded(
    ledger: Ledger, deferred_cleanup: DeferredCleanup
) -> None:
    acknowledge(deferred_cleanup, 1, 2)
    other = Start("R", "c.1", "w2@h/c", 7, 1, 2, 0, "id1", "t", "celery", 2, 5, 1, 1)
    ledger.client.hset(ledger.keys.running, "m1", other.encode())
    deferred_cleanup.clean_up()
    deferred_cleanup.clean_up()
    assert deferred_cleanup.missing == 1, "the other one, which never came"
    assert ledger.client.hget(ledger.keys.running, "m1") == other.encode()


def _refused(*args: object, **kwargs: object) -> None:
    raise redis.ConnectionError("cut")


def test_NEW_9_a_copy_of_what_had_come_twice_before_is_recognised_for_a_while_after_its_acknowledgement(
    ledger: Ledger, deferred_cleanup: DeferredCleanup
) -> None:
    """RabbitMQ may close the connection before it reads the acknowledgement, and delivers once more."""
    me, start = Incarnation("w1@h"), Start("R", "b.1", "w1@h/b", 7, 1, 1, 0, "id1", "t", "celery", 2, 5, 1, 1)
    at_once = SimpleNamespace(do=lambda job: job(), do_together=lambda job, item: job([item]))
    needs = {"me": me, "ledger": ledger, "background": at_once, "deferred_cleanup": deferred_cleanup}
    outcomes = on_site(Outcomes, settings=Settings(), **needs)
    redelivered = SimpleNamespace(is_ordinary=False, overtaken=None)
    request = SimpleNamespace(id="id1", type="t", poison=redelivered, start=lambda: start)
    arrive(ledger, 1)
    outcomes.acknowledged(request, Ticket("m1", "b.1", "celery", FIRST, 0), guilt=Guilt.CLEARED, copy=False)
    found = ledger.messages.look("m1", "id1", 1000)
    assert (found.start, found.ended) == (start, Ended.DONE), "a copy that comes now has ended here"
    deferred_cleanup.clean_up()
    assert on_record(ledger) == (0, 0)


def test_one_that_cannot_be_forgotten_is_counted_and_keeps_no_other_on_record(
    ledger: Ledger, deferred_cleanup: DeferredCleanup
) -> None:
    refused: Any = ("no", "word")  # redis-py refuses it, before anything is sent
    acknowledge(deferred_cleanup, 1)
    deferred_cleanup.add(Acknowledged(0.0, refused, "b.2", "id2", "t"))
    acknowledge(deferred_cleanup, 3)
    arrive(ledger, 1, 3)
    deferred_cleanup.clean_up()
    assert on_record(ledger) == (0, 0) and deferred_cleanup.missing == 1
    deferred_cleanup.clean_up()
    assert deferred_cleanup.missing == 1, "it is counted once"
