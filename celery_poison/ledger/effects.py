"""What counts only once, or not at all: idempotency keys (NEW-12), and what leaves with a success (TP1-9).

A key belongs to a start while that is on record and has not ended. Afterwards it is free, unless its task has
returned: then it counts for its window. So whoever dies or fails need not give it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from celery_poison.ledger.scripts import Caller, Code
from celery_poison.model import Start

#: A claim counts so long at most: nobody takes those of dead starts off the books.
LASTS_MS = 7 * 86_400_000
#: What is tied to the success of a start is kept so long.
TIED_MS = 86_400_000


class Turn(Enum):
    """What a start may do that asks for its idempotency key."""

    RUN = "run"
    WAIT = "wait"
    OVER = "over"


_TURNS = {Code.OK: Turn.RUN, Code.HELD: Turn.WAIT, Code.DONE: Turn.OVER}


class Claim(NamedTuple):
    """The answer.

    Attributes:
        first: task id of the start that has the key, or has returned under it; empty: the asking one.
    """

    turn: Turn
    first: str = ""


class EffectTransitions(Caller):
    """What pool processes, workers and monitors do with idempotency keys.

    ``effect`` is the name that :meth:`effect_of` gives.
    """

    def effect_of(self, key: str) -> str:
        """Return the ledger's key that says who has the idempotency key with the hash ``key``."""
        return self.keys.effect(key)

    def claim_effect(self, effect: str, mid: str, start: Start) -> Claim:
        """Take a key for a start that is about to run, unless another one has it."""
        words = {"mid": mid, "start": start.encode(), "lasts_ms": LASTS_MS}
        code, *first = self._call("claim_effect", {"effect": effect}, **words)
        return Claim(_TURNS[code], first[0].decode() if first else "")

    def keep_effect(self, effect: str, token: str, window: float) -> bool:
        """Note that the task has returned; False when another start has taken the key meanwhile.

        Args:
            window: seconds for which the key counts from now on.
        """
        window_ms = int(window * 1000)
        reply = self._call("keep_effect", {"effect": effect}, token=token, window_ms=window_ms)
        return bool(reply[0] is Code.OK)

    def await_effect(self, mid: str, start: Start, effect: str, parcel: bytes) -> None:
        """End a start for whose key another one runs, and keep its message until that has ended.

        Args:
            effect: empty where Redis could not be asked who has the key.
            parcel: the original message, packed.

        Raises:
            StaleDelivery: the message has a newer start, or none.
        """
        words: dict[str, str | bytes] = {"effect": effect, "parcel": parcel}
        self._call("await_effect", {}, mid=mid, start=start.encode(), **words)

    def tie(self, mid: str, start: Start, messages: Iterable[tuple[str, bytes]]) -> None:
        """Keep what a task has published, given as (lane, packed message), until its success is on record.

        Raises:
            StaleDelivery: its message has a new owner: nothing of it may leave (EMS-11).
        """
        words = {"mid": mid, "start": start.encode(), "lasts_ms": TIED_MS}
        flat = [word for message in messages for word in message]
        self._call("tie", {"tied": self.keys.tied(start.token)}, rest=flat, messages="", **words)

    def still_awaited(self, awaited: Mapping[str, str]) -> set[str]:
        """Return those of parked messages for whose keys other starts still run.

        Args:
            awaited: mid -> the effect that it waits for.
        """
        replies = self._call_each("effect_runs", [({"effect": effect}, {}) for effect in awaited.values()])
        return {mid for mid, reply in zip(awaited, replies, strict=True) if reply[0] is Code.HELD}
