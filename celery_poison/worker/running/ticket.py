"""What the main process tells the pool process about one delivery."""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_poison.task import FIRST, Attempt

Told = tuple[str, str, str, int, tuple[Any, ...] | None]


class Ticket(NamedTuple):
    """A delivery that goes to the pool.

    Attributes:
        token: of this start.
        attempt: what came before it.
        payload_bytes: size of its body as the broker had it; 0 where nobody looked.
    """

    mid: str
    token: str
    queue: str
    attempt: Attempt
    payload_bytes: int = 0

    def tell(self) -> Told:
        """Return it as plain words, which are cheap to pickle; most have no history to tell of."""
        history = None if self.attempt is FIRST else tuple(self.attempt)
        return self.mid, self.token, self.queue, self.payload_bytes, history

    @classmethod
    def told(cls, words: Told) -> Ticket:
        mid, token, queue, size, history = words
        return cls(mid, token, queue, FIRST if history is None else Attempt(*history), size)
