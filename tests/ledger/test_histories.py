"""The counts that the ledger keeps are those of docs/verdict.md, for every short sequence of events."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Keys, Ledger
from celery_poison.ledger.connection import open_redis
from celery_poison.model import Guilt, History, Start
from tests.docs.verdict_table import counts

MID = "m"
LONGEST = 3


class Book:
    """One message's record, made by the ledger's own scripts."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger(open_redis(url), Keys("histories"))
        self.queries = self.ledger.read
        self._tokens = itertools.count()

    def begin(self) -> Start:
        start = Start("R", f"t{next(self._tokens)}", "n/b", 1, 1, 1, 0, "id", "shop.render", "q", 9, 9, 10, 1)
        self.ledger.client.hset(self.ledger.keys.running, MID, start.encode())
        return start

    def release(self) -> None:
        parcel: Any = {"state": "NDLV"}
        start = self.begin()
        self.ledger.client.hset(self.ledger.keys.message(MID), mapping={"id": "id", "mid": MID, "crashes": 0,
                                "task": start.task, "queue": "q", "release": 1, **parcel})  # fmt: skip
        known = self.queries.history("id")
        self.ledger.client.hset(self.ledger.keys.message(MID), "crashes", known.crashes)
        self.ledger.client.delete(self.ledger.keys.lineage("id"))  # as quarantine.lua does
        self.ledger.decisions.complete_release(MID, "id", 1)


EVENTS: dict[str, tuple[str, bool | None, Callable[[Book], Any]]] = {
    "alone": ("its pool process died: signal, exit status, out of memory", True,
              lambda b: b.ledger.messages.crash(MID, b.begin(), cause="signal:9", shared=False)),
    "cell": ("it died in its cell", True,
             lambda b: b.ledger.messages.crash(MID, b.begin(), cause="signal:9", shared=False)),
    "shared": ("its whole worker died while it ran, or while it was received", False,
               lambda b: b.ledger.messages.crash(MID, b.begin(), cause="worker_lost", shared=True)),
    "limit": ("a hard time limit that puts the message back", True,
              lambda b: b.ledger.messages.crash(
                  MID, b.begin(), cause="time_limit", shared=False, failure=True)),
    "rollback": ("`self.rollback()`, `Reject(requeue=True)`", None,
                 lambda b: b.ledger.messages.rollback(MID, b.begin(), cause="rejected")),
    "shutdown": ("shutdown, revocation, lost broker connection, process recycling", None,
                 lambda b: b.ledger.messages.interrupt(MID, b.begin(), cause="shutdown")),
    "spoilt": ("its worker ended while it was in a cell", None,
               lambda b: b.ledger.messages.interrupt(
                   MID, b.begin(), cause="worker_lost", doubt=500, spoilt=True)),
    "retry": ("it asked for a retry", None,
              lambda b: b.ledger.messages.acquit(MID, b.begin(), Guilt.KEPT)),
    "released": ("it was released", None, Book.release),
}  # fmt: skip


def _told(sequence: tuple[str, ...]) -> tuple[History, int]:
    """What the page says of them, and the number of deaths alone since it was last cleared or released."""
    history, proven = History(), 0
    for name in sequence:
        row, alone, _ = EVENTS[name]
        history = counts()[row].add(history)
        proven = 0 if name == "released" else proven + bool(alone)
    return history, proven


def test_SAP_3_every_short_history_is_counted_as_the_docs_tell(redis_url: str) -> None:
    book = Book(redis_url)
    for length in range(1, LONGEST + 1):
        for sequence in itertools.product(EVENTS, repeat=length):
            book.ledger.client.flushdb()
            for name in sequence:
                EVENTS[name][2](book)
            kept, (told, proven) = book.queries.history("id"), _told(sequence)
            assert (kept.crashes, kept.strikes, kept.failures, kept.proven) == (
                told.crashes,
                told.strikes,
                told.failures,
                proven,
            ), sequence
            assert kept.candidate == _is_suspect(sequence), sequence
            assert kept.probation == ("released" in sequence)


def _is_suspect(sequence: tuple[str, ...]) -> bool:
    suspect = False
    for name in sequence:
        _, alone, _ = EVENTS[name]
        suspect = suspect or alone is not None or name == "released"
    return suspect


def test_a_history_is_forgotten_after_30_days_unless_its_message_is_a_candidate(redis_url: str) -> None:
    book = Book(redis_url)

    def expires_in() -> int:
        left: Any = book.ledger.client.ttl(book.ledger.keys.lineage("id"))
        return int(left)

    cut_short = book.begin()
    book.ledger.messages.interrupt(MID, cut_short, cause="shutdown")
    assert 0 < expires_in() <= 30 * 86_400, "nobody may ever tell of its end"
    died = book.begin()
    book.ledger.messages.crash(MID, died, cause="worker_lost", shared=True)
    assert expires_in() == -1
    book.begin()
    with pytest.raises(StaleDelivery):
        book.ledger.messages.revoke_strike(MID, died.token, "id")
    assert 0 < expires_in() <= 30 * 86_400, "the other delivery may be given back without a run"
