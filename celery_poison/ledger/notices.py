"""Notices: what became of a task while no worker was at hand to send the event; the next one tells Flower.

Only a live worker may send an event: in any other name it would make a worker appear in Flower that does not
exist. Nothing is decided by a notice, and one that is not true any more when it is taken is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import LedgerPart
from celery_poison.states import State

#: Tasks that are remembered, and for how many seconds, where no worker takes them.
MAX_NOTICES = 10_000
LIFETIME = 86_400

#: What a log says of a death that is not proven yet: of task and id, how it died, and its deaths so far.
SUSPECTED = "celery_poison: Task %s[%s] %s; it is a candidate now (death %d)"


class Fact(StrEnum):
    """A fact about a task; the last three are decisions of people."""

    CANDIDATE = "candidate"
    RELEASED = "release"
    FAILED = "fail"
    DISCARDED = "discard"


@dataclass(frozen=True, slots=True)
class Notice:
    """One fact about one task; of several the newest counts."""

    id: str
    fact: Fact
    story: str
    mid: str = ""


class NoticeTransitions(LedgerPart):
    """Notices for workers that send events."""

    def leave(self, notices: Iterable[Notice]) -> None:
        """Leave notices for a worker that sends events, in one step; too many are forgotten."""
        if rest := [(each.id, json.dumps([each.fact, each.mid, each.story])) for each in notices]:
            self._scripts.call("leave_notice", rest=rest, most=MAX_NOTICES, lifetime_ms=LIFETIME * 1000)

    def take(self) -> list[Notice]:
        """Take all notices that are still true; no other worker gets them."""
        flat = self._scripts.call("take_notices")[1]
        if not flat:
            return []
        notices = []
        for id, line in zip(flat[::2], flat[1::2], strict=True):
            fact, mid, story = json.loads(line)
            notices.append(Notice(id.decode("utf-8", "replace"), Fact(fact), story, mid))
        with clear_errors("reading whether notices are true"):
            pipe = self._scripts.client.pipeline(transaction=False)
            for notice in notices:
                pipe.zscore(self._scripts.keys.candidates, notice.id)
                pipe.hget(self._scripts.keys.message(notice.mid), "state")
            seen = pipe.execute()
        rows = zip(notices, seen[::2], seen[1::2], strict=True)
        return [notice for notice, flagged, state in rows if _is_true(notice, flagged, state)]


def _is_true(notice: Notice, flagged: float | None, state: bytes | None) -> bool:
    if notice.fact in (Fact.CANDIDATE, Fact.RELEASED):
        # Once it has run, its worker has reported how it ended; RETRY would stand over that for ever.
        return flagged is not None
    return state is None or state.decode() == State.FAIL
