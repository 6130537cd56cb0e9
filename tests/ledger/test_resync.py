"""resync: what a worker tells a Redis that may have forgotten it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Keys, Ledger
from celery_poison.model import Ended, Guilt, Phase, Start

WORKER = "w1@host/0a1b"


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with redis.Redis.from_url(redis_url) as client:
        yield Ledger(client, Keys("ns", "NAME"))


def _start(token: str, worker: str = WORKER) -> Start:
    return Start("R", token, worker, 7, 1, 1, 0, "id", "shop.charge", "celery", 2, 5, 10, 1)


def _on_record(ledger: Ledger) -> dict[str, tuple[str, str]]:
    done: Any = ledger.client.hgetall(ledger.keys.done)
    running = ledger.read.running()
    return {mid: (start.token, done.get(start.token.encode(), b"").decode()) for mid, start, _ in running}


def test_TP1_8_a_forgotten_start_is_on_record_again_with_its_end(ledger: Ledger) -> None:
    starts = [("runs", _start("0a1b.1"), Ended.NOT), ("ended", _start("0a1b.2"), Ended.DONE)]
    assert ledger.messages.resync(starts) == 2
    assert _on_record(ledger) == {"runs": ("0a1b.1", ""), "ended": ("0a1b.2", "D")}
    assert ledger.messages.resync(starts) == 0, "it knows that now"


def test_TP1_8_the_end_of_a_start_that_is_on_record_is_added(ledger: Ledger) -> None:
    ledger.messages.claim("m", b"", _start("0a1b.1"))
    assert ledger.messages.resync([("m", _start("0a1b.1"), Ended.DONE)]) == 1
    assert _on_record(ledger) == {"m": ("0a1b.1", "D")}


def test_EMS_8_another_start_of_the_message_is_left_alone(ledger: Ledger) -> None:
    ledger.messages.claim("m", b"", _start("0c3d.1", "w2@host/0c3d"))
    assert ledger.messages.resync([("m", _start("0a1b.1"), Ended.DONE)]) == 0
    assert _on_record(ledger) == {"m": ("0c3d.1", "")}


def test_EMS_8_a_worker_that_was_declared_dead_is_not_heard(ledger: Ledger) -> None:
    ledger.client.zadd(ledger.keys.buried, {WORKER: 1})
    assert ledger.messages.resync([("m", _start("0a1b.1"), Ended.NOT)]) == 0
    assert not _on_record(ledger)


def test_TP1_8_an_end_that_a_copy_was_told_already_is_not_told_again(ledger: Ledger) -> None:
    ended = ("m", _start("0a1b.1"), Ended.DONE)
    ledger.messages.resync([ended])
    ledger.messages.duplicate("m", _start("0c3d.1", "w2@host/0c3d"), reason="finished")
    assert not _on_record(ledger), "its copy was dropped, and the start forgotten"
    assert ledger.messages.resync([ended]) == 0 and not _on_record(ledger)


@pytest.mark.parametrize("phase", [Phase.CLAIMED, Phase.RUNNING])
def test_TP1_8_a_start_that_is_taken_back_stays_what_it_was(ledger: Ledger, phase: Phase) -> None:
    on_record = _start("0a1b.1")._replace(phase=phase, at_ms=1_795_457_568_385)
    ledger.client.hset(ledger.keys.running, "m", on_record.encode())
    unheard = on_record._replace(worker=WORKER + "r1", phase=Phase.RUNNING, pid=0, at_ms=0)
    ledger.messages.reclaim("m", unheard)  # nobody has heard that it began
    ((_, found, _),) = ledger.read.running()
    assert found == on_record._replace(worker=WORKER + "r1")


def test_EMS_8_a_start_that_was_taken_back_and_dies_then_counts_once(ledger: Ledger) -> None:
    messages, (first, second) = ledger.messages, (_start("0c3d.1", "w2@host/0c3d"), _start("0a1b.1"))
    for start in (first, second):  # the second lives: its worker was silent
        messages.claim("m", b"", start)
        messages.crash("m", start, cause="worker_lost", shared=False)
    messages.reclaim("m", second)
    assert _counted(ledger) == (1, 1, 0)
    messages.crash("m", second, cause="signal:9", shared=False)
    assert not _on_record(ledger)
    assert _counted(ledger) == (2, 2, 0)
    messages.crash("m", second, cause="signal:9", shared=False)
    assert _counted(ledger) == (2, 2, 0), "the answer to the first was lost"


def test_EMS_8_a_start_that_is_taken_back_takes_its_failure_along_and_no_death(
    ledger: Ledger,
) -> None:
    messages, (first, second) = ledger.messages, (_start("0c3d.1", "w2@host/0c3d"), _start("0a1b.1"))
    messages.claim("m", b"", first)
    messages.crash("m", first, cause="signal:9", shared=False)
    messages.claim("m", b"", second)
    messages.rollback("m", second, cause="rejected")
    assert _counted(ledger) == (1, 1, 1)
    messages.reclaim("m", second)
    assert _counted(ledger) == (1, 1, 0)


@pytest.mark.parametrize(("doubt", "spoilt"), [(500, True), (333, False), (0, True)])
def test_EMS_8_a_trial_that_is_taken_back_takes_its_doubt_along(
    ledger: Ledger, doubt: int, spoilt: bool
) -> None:
    messages, first = ledger.messages, _start("0c3d.1", "w2@host/0c3d")
    messages.claim("m", b"", first)
    messages.crash("m", first, cause="signal:9", shared=True)
    trial = _start("0a1b.1")._replace(alone=1)
    messages.claim("m", b"", trial)
    for failure in (False, True, False):
        messages.interrupt("m", trial, cause="frozen", failure=failure, doubt=doubt, spoilt=spoilt)
        history = ledger.read.history("id")
        assert (history.doubt, history.spoilt, history.failures) == (doubt, spoilt, failure)
        messages.reclaim("m", trial)
        history = ledger.read.history("id")
        assert (history.crashes, history.doubt, history.spoilt, history.failures) == (1, 0, 0, 0)


def test_EMS_8_of_a_death_that_was_none_the_failures_of_a_waiting_retry_stay(ledger: Ledger) -> None:
    messages, (first, second) = ledger.messages, (_start("0c3d.1", "w2@host/0c3d"), _start("0a1b.1"))
    messages.claim("m", b"", first)
    messages.rollback("m", first, cause="rejected")
    messages.claim("m", b"", second)
    messages.interrupt("m", second, cause="frozen", failure=True)
    assert _counted(ledger) == (0, 0, 2)
    ledger.client.hset(ledger.keys.lineage("id"), mapping={"probation": 1, "doubted": 2})  # it was released
    for _ in range(2):
        messages.revoke_strike("m", second.token, "id")
        assert _counted(ledger) == (0, 0, 1), "its own is taken back, once"
        assert not ledger.read.history("id").probation, "it has ended alive"
    assert ledger.client.hget(ledger.keys.lineage("id"), "doubted") == b"0"


def test_EMS_8_a_start_whose_message_ended_for_a_retry_elsewhere_is_not_taken_back(ledger: Ledger) -> None:
    messages, (first, second) = ledger.messages, (_start("0c3d.1", "w2@host/0c3d"), _start("0a1b.1"))
    messages.claim("m", b"", first)
    messages.crash("m", first, cause="worker_lost", shared=False)
    messages.claim("m", b"", second)
    messages.acquit("m", second, Guilt.KEPT)
    ledger.client.hdel(ledger.keys.running, "m")
    with pytest.raises(StaleDelivery):
        messages.reclaim("m", first)
    assert ledger.read.history("id").strikes == 1, "a retry clears nothing"


@pytest.mark.parametrize("guilt", Guilt)
def test_NEW_26_of_a_death_that_was_none_only_its_own_strike_goes_unless_the_run_came_to_its_end(
    ledger: Ledger, guilt: Guilt
) -> None:
    messages, (first, second) = ledger.messages, (_start("0c3d.1", "w2@host/0c3d"), _start("0a1b.1"))
    messages.claim("m", b"", first)
    messages.crash("m", first, cause="signal:9", shared=False)
    messages.claim("m", b"", second)
    messages.crash("m", second, cause="worker_lost", shared=True)
    for _ in range(2):
        messages.revoke_strike("m", second.token, "id", guilt)
        assert _counted(ledger) == ((0, 0, 0) if guilt is Guilt.CLEARED else (1, 1, 0))
        assert ledger.read.history("id").candidate == (guilt is Guilt.KEPT), "a retry goes on under it"


def test_NEW_26_what_never_ran_clears_nothing_and_what_is_convicted_of_nothing_goes(ledger: Ledger) -> None:
    messages, (first, second) = ledger.messages, (_start("0c3d.1", "w2@host/0c3d"), _start("0a1b.1"))
    messages.claim("m", b"", first)
    messages.crash("m", first, cause="signal:9", shared=False)
    messages.claim("m", b"", second)
    messages.acquit("m", second, Guilt.UNPROVEN, why="revoked")
    assert _counted(ledger) == (1, 1, 0) and not ledger.read.history("id").candidate
    third = _start("0a1b.2")
    messages.claim("m", b"", third)
    assert messages.acquit("m", third, Guilt.CLEARED), "who has strikes and no flag is cleared of them"
    assert _counted(ledger) == (0, 0, 0)
    messages.claim("m", b"", third)
    messages.rollback("m", third, cause="rejected")
    messages.claim("m", b"", fourth := _start("0a1b.3"))
    assert not messages.acquit("m", fourth, Guilt.UNPROVEN)
    assert ledger.read.lineage("id") is None, "nothing of it is worth keeping"


def _counted(ledger: Ledger) -> tuple[int, int, int]:
    history = ledger.read.history("id")
    return history.crashes, history.strikes, history.failures
