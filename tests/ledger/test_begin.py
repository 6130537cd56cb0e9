"""The start of a task that must not run twice: on record before its body begins, or refused (NEW-16)."""

from __future__ import annotations

import pytest

from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Phase, Start

MID, ID = "m1", "id-1"


@pytest.fixture
def ledger(redis_url: str) -> Ledger:
    return Ledger(open_redis(redis_url), Keys())


def _start(token: str, phase: Phase = Phase.RUNNING, pid: int = 7) -> Start:
    return Start.of(token, "node/boot", ID, "shop.pay", phase=phase, pid=pid, queue="q", at_ms=1)


def test_NEW_16_a_start_begins_once_and_is_on_record_then(ledger: Ledger) -> None:
    ledger.messages.claim(MID, b"", _start("b.1", Phase.CLAIMED))  # its own
    ledger.messages.begin(MID, _start("b.1"))
    ledger.messages.begin(MID, _start("b.1"))  # the answer to the first was lost
    assert [(mid, start.token) for mid, start, _ in ledger.read.running()] == [(MID, "b.1")]
    with pytest.raises(StaleDelivery):
        ledger.messages.begin(MID, _start("b.2"))
    assert [start.token for _, start, _ in ledger.read.running()] == ["b.1"]


@pytest.mark.parametrize("how", ["crash", "interrupt"])
def test_NEW_16_what_was_cut_off_does_not_begin_again_and_its_retry_does(ledger: Ledger, how: str) -> None:
    ledger.messages.begin(MID, _start("b.1"))
    if how == "crash":
        ledger.messages.crash(MID, _start("b.1"), cause="signal:9", shared=False)
    else:
        ledger.messages.interrupt(MID, _start("b.1"), cause="shutdown")
    history = ledger.read.history(ID)
    assert (history.cut_off, history.cut_off_by) == (MID, "signal:9" if how == "crash" else "shutdown")
    with pytest.raises(StaleDelivery):
        ledger.messages.begin(MID, _start("b.2"))
    ledger.messages.begin("m2", _start("b.3"))


def test_NEW_16_what_never_began_was_not_cut_off(ledger: Ledger) -> None:
    never = (
        (_start("b.1", Phase.ADMITTING), "worker_lost"),
        (_start("b.2", pid=0), "shutdown"),
        (_start("b.3"), "not_reached"),
    )
    for start, cause in never:
        ledger.messages.claim(MID, b"", start)
        ledger.messages.interrupt(MID, start, cause=cause)
        assert not ledger.read.history(ID).cut_off, start
    ledger.messages.claim(MID, b"", _start("b.4", Phase.ADMITTING))
    ledger.messages.crash(MID, _start("b.4", Phase.ADMITTING), cause="receive", shared=False)
    assert not ledger.read.history(ID).cut_off
    ledger.messages.begin(MID, _start("b.5"))


@pytest.mark.parametrize("how", ["survived", "reclaim", "reclaim after a failure"])
def test_NEW_16_what_lives_after_all_was_not_cut_off(ledger: Ledger, how: str) -> None:
    ledger.messages.begin(MID, _start("b.1"))
    if how == "reclaim after a failure":
        ledger.messages.rollback("m0", _start("b.0"), cause="rejected")
    ledger.messages.interrupt(MID, _start("b.1"), cause="frozen", failure=True)
    if how == "survived":
        ledger.messages.claim(MID, b"", _start("b.2", Phase.CLAIMED))  # another delivery of it is under way
        with pytest.raises(StaleDelivery):
            ledger.messages.revoke_strike(MID, "b.1", ID)
    else:
        ledger.messages.reclaim(MID, _start("b.1"))
    assert not ledger.read.history(ID).cut_off
