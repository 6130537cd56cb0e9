"""Which parked suspects a monitor publishes: as many as workers have room for, in their order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_poison.causes import Evidence
from celery_poison.fleet.turns import whose_turn
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Start

ALIVE_MS, AT = 60_000, 1_763_000_000.0


@pytest.fixture
def ledger(redis_url: str) -> Iterator[Ledger]:
    with open_redis(redis_url) as client:
        yield Ledger(client, Keys("turns"))


def _start(id: str, task: str = "t", queue: str = "q") -> Start:
    at_ms = int(AT * 1000)
    return Start.of(f"t-{id}", "dead@h/1", id, task, queue=queue, at_ms=at_ms, deliveries=1, alone=1)


def _suspect(ledger: Ledger, id: str, ran_s: float, *, near_limit: bool = False, **start: str) -> None:
    """Park what has died with its worker once."""
    died = _start(id, **start)
    known = {"evidence": Evidence(near_limit=near_limit).encode()}
    ledger.messages.claim(id, b"", died)
    ledger.messages.crash(id, died, cause="worker_lost", shared=True, died_at=AT + ran_s, known=known)
    assert ledger.parking.park(id, b"", died, number=0, parcel=b"x")


def _beats(ledger: Ledger, worker: str, room: int, queues: str = "q", **more: int) -> None:
    facts = {"queues": queues, "room": room, "concurrency": 9, **more}
    ledger.fleet.beat(worker, facts, first=True, run_id="")


def _turns(ledger: Ledger) -> list[str]:
    suspects = dict(ledger.read.parked_now())
    return [mid for mid, _ in whose_turn(ledger, suspects, ALIVE_MS)]


def test_NEW_1_no_more_leave_than_workers_of_their_queue_have_room_for(ledger: Ledger) -> None:
    for number in range(5):
        _suspect(ledger, f"m{number}", 1.0 + number)
    _suspect(ledger, "other", 1.0, queue="elsewhere")
    assert not _turns(ledger), "nobody is there"
    _beats(ledger, "full@h/1", 0)
    assert not _turns(ledger)
    _beats(ledger, "a@h/1", 1)
    _beats(ledger, "b@h/1", 2, queues="p,q")
    _beats(ledger, "leaves@h/1", 5, stopping=1)
    assert _turns(ledger) == ["m0", "m1", "m2"]


def test_NEW_1_the_likeliest_poison_leaves_first(ledger: Ledger) -> None:
    _suspect(ledger, "long", 60.0)
    _suspect(ledger, "short", 0.5)
    _suspect(ledger, "grew", 90.0, near_limit=True)
    _suspect(ledger, "like-a-poison", 99.0, task="deadly")
    _suspect(ledger, "like-a-failure", 99.0, task="fails")
    for id, task, cause in (("p", "deadly", "signal:9"), ("f", "fails", "failure")):
        ledger.messages.claim(id, b"", _start(id, task))
        ledger.quarantine.store(id, _start(id, task), cause=cause, reason="x", fields={"body": b"x"})
    _beats(ledger, "a@h/1", 9)
    assert _turns(ledger) == ["like-a-poison", "grew", "short", "long", "like-a-failure"]
    _beats(ledger, "a@h/1", 1)
    assert _turns(ledger) == ["like-a-poison"]
