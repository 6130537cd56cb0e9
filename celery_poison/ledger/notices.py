"""What became of a task while no worker was at hand to say so; the next one that is heard tells Flower.

Only a live worker may send an event: in any other name it would make a worker appear in Flower that does not
exist. Nobody decides by it, and what is not true any more when somebody takes it is dropped. All functions
raise ``LedgerUnavailable`` when Redis is away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller
from celery_poison.states import State

#: Tasks that are remembered, and for how many seconds, where nobody listens.
MAX_NOTICES = 10_000
LIFETIME = 86_400

#: What a log says of a death that is not proven yet: of task and id, how it died, and its deaths so far.
SUSPECTED = "celery_poison: Task %s[%s] %s; it is a candidate now (death %d)"


class Fact(StrEnum):
    """What happened to a task; the last three are what people decide."""

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


def leave_notice(ledger: Caller, notice: Notice) -> None:
    """Leave a notice for a worker that sends events; too many are forgotten."""
    leave_notices(ledger, [notice])


def leave_notices(ledger: Caller, notices: Iterable[Notice]) -> None:
    """Leave some notices in one step."""
    if rest := [(each.id, json.dumps([each.fact, each.mid, each.story])) for each in notices]:
        ledger._call("leave_notice", rest=rest, most=MAX_NOTICES, lifetime_ms=LIFETIME * 1000)


def take(ledger: Caller) -> list[Notice]:
    """Take all notices that are still true; nobody else gets them."""
    flat = ledger._call("take_notices")[1]
    if not flat:
        return []
    found = []
    for id, line in zip(flat[::2], flat[1::2], strict=True):
        fact, mid, story = json.loads(line)
        found.append(Notice(id.decode("utf-8", "replace"), Fact(fact), story, mid))
    with clear_errors("reading whether notices are true"):
        pipe = ledger.client.pipeline(transaction=False)
        for notice in found:
            pipe.zscore(ledger.keys.candidates, notice.id)
            pipe.hget(ledger.keys.message(notice.mid), "state")
        seen = pipe.execute()
    rows = zip(found, seen[::2], seen[1::2], strict=True)
    return [notice for notice, flagged, state in rows if _is_true(notice, flagged, state)]


def _is_true(notice: Notice, flagged: float | None, state: bytes | None) -> bool:
    if notice.fact in (Fact.CANDIDATE, Fact.RELEASED):
        # Once it has run, its worker told how it ended; RETRY would stand over that for ever.
        return flagged is not None
    return state is None or state.decode() == State.FAIL
