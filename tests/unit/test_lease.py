"""When a worker may trust its lease, and what a ledger that answers late changes in that."""

from __future__ import annotations

import pytest

from celery_poison.worker import lease as module
from celery_poison.worker.lease import Lease


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    moment = [1000.0]
    monkeypatch.setattr(module, "clock", lambda: moment[0])
    return moment


def test_a_lease_that_nobody_confirms_is_doubtful(now: list[float]) -> None:
    lease = Lease(4.0)
    now[0] += 3.5
    assert not lease.is_doubtful()
    now[0] += 0.2
    assert lease.is_doubtful()


def test_NEW_8_a_ledger_that_answers_late_counts_as_away(now: list[float]) -> None:
    lease, doubts = Lease(4.0), 0
    for _ in range(5):  # each heartbeat is answered after two seconds, and the next is sent at once
        asked = now[0]
        lease.asked()
        for _ in range(19):
            now[0] += 0.1
            doubts += lease.is_doubtful()
        assert lease.is_unanswered
        now[0] += 0.1
        lease.confirmed(asked)
        assert not lease.is_unanswered
    assert not doubts


def test_EMS_8_a_process_that_stood_still_doubts_its_lease_whatever_it_had_asked(now: list[float]) -> None:
    lease = Lease(4.0)
    lease.asked()
    now[0] += 60
    assert lease.is_doubtful() and not lease.is_unanswered


def test_the_processes_of_a_worker_know_it_too(now: list[float]) -> None:
    lease = Lease(4.0)
    in_a_pool_process = Lease(4.0, lease.fd)
    lease.asked()
    now[0] += 4.5
    assert not in_a_pool_process.is_doubtful()
    lease.void(7)
    assert in_a_pool_process.is_void("b.7") and not in_a_pool_process.is_doubtful()
