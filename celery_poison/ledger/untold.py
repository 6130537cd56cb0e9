"""What became of a task while no worker was at hand to say so; the next one that is heard tells Flower.

Only a live worker may send an event: in any other name it would make a worker appear in Flower that does not
exist. This is news, not truth: nobody decides by it, and what is not true any more when somebody takes it is
dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.ledger import Ledger
from celery_poison.states import State

#: Tasks that are remembered, and for how many seconds, where nobody listens.
MAX_NEWS = 10_000
LIFETIME = 86_400


class Fact(StrEnum):
    """What happened to a task; the last three are what people decide."""

    CANDIDATE = "candidate"
    RELEASED = "release"
    FAILED = "fail"
    DISCARDED = "discard"


@dataclass(frozen=True, slots=True)
class News:
    """One fact about one task; of several the newest counts."""

    id: str
    fact: Fact
    story: str
    mid: str = ""


def tell_later(ledger: Ledger, news: News) -> None:
    """Leave news for a worker that is heard; too many are forgotten.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    key = ledger.keys.untold
    with clear_errors("leaving news"):
        known: Any = ledger.client.hlen(key)
        if known < MAX_NEWS:
            pipe = ledger.client.pipeline(transaction=False)
            pipe.hset(key, news.id, json.dumps([news.fact, news.mid, news.story]))
            pipe.expire(key, LIFETIME)
            pipe.execute()


def take(ledger: Ledger) -> list[News]:
    """Take all news that are still true; nobody else gets them.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    key = ledger.keys.untold
    with clear_errors("taking news"):
        if not ledger.client.hlen(key):
            return []
        pipe = ledger.client.pipeline(transaction=True)
        pipe.hgetall(key)
        pipe.delete(key)
        raw: dict[bytes, bytes] = pipe.execute()[0]
        found = [_news(id.decode("utf-8", "replace"), line) for id, line in raw.items()]
        pipe = ledger.client.pipeline(transaction=False)
        for news in found:
            pipe.zscore(ledger.keys.candidates, news.id)
            pipe.hget(ledger.keys.message(news.mid), "state")
        seen = pipe.execute()
    sights = zip(found, seen[::2], seen[1::2], strict=True)
    return [news for news, flagged, state in sights if _is_true(news, flagged, state)]


def _is_true(news: News, flagged: float | None, state: bytes | None) -> bool:
    if news.fact in (Fact.CANDIDATE, Fact.RELEASED):
        # Once it has run, its worker told how it ended; RETRY would stand over that for ever.
        return flagged is not None
    return state is None or state.decode() == State.FAIL


def _news(id: str, line: bytes) -> News:
    fact, mid, story = json.loads(line)
    return News(id, Fact(fact), story, mid)
