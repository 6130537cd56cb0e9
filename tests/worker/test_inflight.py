"""Every way in which an entry of this very worker may meet a copy of its message (TP1-8)."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import redis
from celery.worker.state import reserved_requests

from celery_poison.ledger import Keys, Ledger
from celery_poison.model import Ended, Start
from celery_poison.worker.inflight import MEMORY, InFlight
from celery_poison.worker.rejoin import take_back_claims

NOBODY = 2**22 + 1  # above the largest pid of Linux


def _start(phase: str = "R", pid: int = NOBODY) -> Start:
    return Start(phase, "t1", "n/b", pid, 1, 1, 0, "id", "task", "q", 2, 5, 1, 1)


@pytest.mark.parametrize("ended", [Ended.DONE, Ended.ROLLED_BACK, Ended.INTERRUPTED])
def test_an_end_on_record_is_believed(ended: Ended) -> None:
    assert InFlight().of(_start(), ended) == (True, ended)


def test_a_start_in_the_pool_stands_in_the_way_until_it_left() -> None:
    known = InFlight()
    known.went_to_pool("t1", object())
    assert known.of(_start(), Ended.NOT) == (True, Ended.NOT)
    known.left_pool("t1", ended_well=True)
    assert known.of(_start(), Ended.NOT) == (True, Ended.DONE), "its end never reached the ledger"


def test_TP1_8_a_start_that_no_process_began_does_not_stand_in_the_way_of_a_copy() -> None:
    taken_back = _start(pid=0)  # by a worker that was taken for dead, for a suspect that waits for its cell
    assert InFlight().of(taken_back, Ended.NOT) == (False, Ended.NOT)
    assert not InFlight().is_known(taken_back)


def test_EMS_8_a_message_that_runs_here_is_known_whatever_is_on_record() -> None:
    known = InFlight()
    known.went_to_pool("t1", SimpleNamespace(mid="m"))
    assert known.is_running("m") and not known.is_running("other")
    known.left_pool("t1", ended_well=False)
    assert not known.is_running("m")


class Reserved:
    """A reserved request; ``beside``: one that arrives on the event loop while this one is read."""

    def __init__(self, mid: str, beside: object = None) -> None:
        self.beside, self.request_dict = beside, {"id": "i", "task": "t", "poison_mid": mid}

    def __hash__(self) -> int:
        if (arrives := self.beside) is not None and len(reserved_requests):
            self.beside = None
            reserved_requests.add(arrives)
        return id(self)


def test_TP1_8_what_waits_here_is_found_although_requests_arrive_meanwhile() -> None:
    arrives = Reserved("other")
    reads = Reserved("m", arrives)
    reserved_requests.add(reads)
    try:
        assert InFlight().is_reserved("m") and arrives in reserved_requests
    finally:
        reserved_requests.difference_update({reads, arrives})


def test_a_start_that_ended_badly_does_not_stand_in_the_way() -> None:
    known = InFlight()
    known.went_to_pool("t1", object())
    known.left_pool("t1", ended_well=False)
    assert known.of(_start(), Ended.NOT) == (False, Ended.NOT)


def test_after_a_lost_connection_only_what_had_begun_stands_in_the_way() -> None:
    known, begun = InFlight(), object()
    known.let_in("t0")
    known.went_to_pool("t1", begun)
    known.went_to_pool("t2", object())
    known.connection_lost({begun})
    assert known.of(_start(), Ended.NOT)[0] is True
    assert known.of(_start("C")._replace(token="t0"), Ended.NOT)[0] is False
    assert known.of(_start("C")._replace(token="t2"), Ended.NOT)[0] is False


def test_a_start_thought_dropped_that_runs_all_the_same_stands_in_the_way_while_its_process_lives() -> None:
    assert InFlight().of(_start(pid=os.getpid()), Ended.NOT) == (True, Ended.NOT)
    assert InFlight().of(_start(pid=NOBODY), Ended.NOT) == (False, Ended.NOT)
    assert InFlight().of(_start("C", pid=os.getpid()), Ended.NOT) == (False, Ended.NOT)


def test_the_memory_of_ended_starts_is_bounded() -> None:
    known = InFlight()
    for number in range(MEMORY + 10):
        known.left_pool(f"x{number}", ended_well=True)
    assert known.of(_start()._replace(token="x0"), Ended.NOT)[0] is False
    assert known.of(_start()._replace(token=f"x{MEMORY}"), Ended.NOT)[0] is True


def test_TP1_8_claims_of_a_lost_connection_are_taken_back_so_that_no_other_worker_waits_for_them(
    redis_url: str,
) -> None:
    """Another worker cannot know that this one dropped them, and would park their copies for ever."""
    with redis.Redis.from_url(redis_url) as client:
        ledger = Ledger(client, Keys())
        for mid, phase in (("dropped", "C"), ("kept", "C"), ("runs", "R")):
            ledger.messages.claim(mid, b"", _start(phase)._replace(token=mid))
        known = InFlight()
        known.let_in("dropped")
        known.let_in("runs")
        known.let_in("kept")
        known.went_to_pool("kept", object())
        take_back_claims(ledger, known.connection_lost(()))
        assert {mid for mid, _, _ in ledger.read.running()} == {"kept", "runs"}
