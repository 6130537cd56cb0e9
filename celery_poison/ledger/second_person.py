"""What a person asked for that needs two persons: it waits until another one asks for the same."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from celery_poison.basics.text import count_of
from celery_poison.ledger.connection import Namespace, clear_errors
from celery_poison.model import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Record):
    """A person's request that needs a second person.

    Attributes:
        act: what is typed for it, after ``celery poison``.
        messages: how many it was about when it was asked for.
        since, until: seconds since 1970 by Redis' clock.
    """

    actor: str
    act: str
    messages: int
    note: str
    since: float
    until: float

    @classmethod
    def decode(cls, raw: bytes | str) -> Self:
        """Return the decoded request; ValueError: it is none."""
        try:
            wish = json.loads(raw)
            return cls(
                actor=str(wish["actor"]),
                act=str(wish["act"]),
                messages=int(wish["messages"]),
                note=str(wish["note"]),
                since=wish["at_ms"] / 1000,
                until=wish["until_ms"] / 1000,
            )
        except (TypeError, LookupError, OverflowError, RecursionError) as error:
            raise ValueError(f"{raw!r} is no wish") from error

    @property
    def story(self) -> str:
        """Return the request as a sentence."""
        note = f": {self.note}" if self.note else ""
        return f"{self.actor} asked for {self.act} ({count_of(self.messages, 'message')}){note}"

    @property
    def how(self) -> str:
        """Return the instruction for the second person, as a sentence."""
        same = "ids" if "ID..." in self.act else "words"
        return f"another person does it by the same {same}: celery poison {self.act} --actor NAME"


def wishes(ledger: Namespace) -> list[Wish]:
    """Return the wishes that wait for a second person, the oldest first; raises ``LedgerUnavailable``."""
    with clear_errors("reading what was asked for"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hvals(ledger.keys.asked)
        pipe.time()
        texts, (now, micros) = pipe.execute()
    asked = []
    for text in texts:
        with suppress(ValueError):  # a newer version may have written it
            asked.append(Wish.decode(text))
    return sorted((wish for wish in asked if wish.until > now + micros / 1e6), key=lambda wish: wish.since)
