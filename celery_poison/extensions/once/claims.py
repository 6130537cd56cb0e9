"""Idempotency keys in the ledger: which start has one, and whether its task has returned.

A key belongs to a start while that is on record and has not ended. Then it is free, unless its task has
returned: it counts for its window. So a start whose process dies need not give it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery_poison.ledger import Ledger
from celery_poison.ledger.scripts import Code
from celery_poison.model import Start

#: A claim counts so long at most: nothing takes those of dead starts off the books.
CLAIM_MS = 7 * 86_400_000
#: The script that notes that a task has returned, as the ledger calls it.
KEEP: Final = f"{__package__}:keep_effect"


def words_of_keep(token: str, window: float) -> dict[str, Any]:
    """Return the arguments of :data:`KEEP`.

    Args:
        window: seconds for which the key counts from then on.
    """
    return {"token": token, "window_ms": int(window * 1000)}


class Claims:
    """The claims of starts on keys. Every method raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def claim(self, effect: str, mid: str, start: Start) -> tuple[Code, str]:
        """Take a key (``Keys.effect``) for a start that is about to run: OK.

        HELD, and the task id of the start that has it and runs; DONE, and that of the one that has returned.
        """
        words = {"mid": mid, "start": start, "lasts_ms": CLAIM_MS}
        code, *first = self._ledger.scripts.call(f"{__package__}:claim_effect", {"effect": effect}, **words)
        return code, first[0].decode() if first else ""

    def keep(self, effect: str, token: str, window: float) -> bool:
        """Note that the task has returned; False when another start has taken the key meanwhile."""
        return (
            self._ledger.scripts.call(KEEP, {"effect": effect}, **words_of_keep(token, window))[0] is Code.OK
        )

    def still_held(self, awaited: Mapping[str, str]) -> set[str]:
        """Return the mids of parked messages for whose keys other starts still run.

        Args:
            awaited: mid -> the key that it waits for.
        """
        asked: list[tuple[Mapping[str, str], Mapping[str, Any]]] = [
            ({"effect": effect}, {}) for effect in awaited.values()
        ]
        replies = self._ledger.scripts.call_each(f"{__package__}:effect_runs", asked)
        return {mid for mid, reply in zip(awaited, replies, strict=True) if reply[0] is Code.HELD}
