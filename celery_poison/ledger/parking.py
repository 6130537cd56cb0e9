"""Transitions of messages that wait in the ledger until they may run (TP1-8, TP1-9)."""

from __future__ import annotations

from typing import Any

from celery_poison.errors import LedgerFull
from celery_poison.ledger.scripts import Code, LedgerPart
from celery_poison.model import Start

_FULL = "parked messages have reached poison_park_bytes, or a quarter of Redis' maxmemory"


class ParkingTransitions(LedgerPart):
    """Messages that are kept until they may run, and published again then."""

    def park(
        self,
        mid: str,
        seen: bytes,
        start: Start,
        *,
        number: int,
        parcel: bytes,
        limit_bytes: int | None = None,
        pause: float = 0.0,
        note: str = "",
        awaits: str = "",
    ) -> bool:
        """Keep a message that may not run now; when this returns True it may be acknowledged (TP1-8).

        Args:
            seen: the raw start that stands in its way, empty if none does and it goes to the trial queue;
                False when that has changed.
            number: of the parking that published this copy, 0 for none.
            parcel: the original message, packed.
            limit_bytes: of what is parked; None: any number.
            pause: seconds for which it stays at least, since its run put it back.
            note: why it is parked, for the journal; empty: as the rest says.
            awaits: a key for which it waits, as of :meth:`await_effect`; empty: for none.

        Raises:
            LedgerFull: ``limit_bytes`` is reached.
        """
        words: dict[str, Any] = {"number": number, "parcel": parcel, "limit_bytes": limit_bytes}
        words |= {"pause_ms": int(pause * 1000), "note": note, "effect": awaits}
        reply = self._scripts.call("park", mid=mid, seen=seen, start=start, **words)
        if reply[0] is Code.HELD:
            raise LedgerFull(_FULL)
        return reply[0] is not Code.CONFLICT

    def unpark(self, mid: str, number: int) -> bool:
        """Note that a parked message was published again; False when that parking is none any more."""
        return self._scripts.call("unpark", mid=mid, number=number)[0] is Code.OK

    def forget(self, mid: str, seen: bytes) -> None:
        """Take a parking off the books that ended long ago, unless it has changed."""
        self._scripts.call("forget", mid=mid, seen=seen)

    def await_effect(
        self, mid: str, start: Start, effect: str, parcel: bytes, limit_bytes: int | None = None
    ) -> None:
        """End a start for whose key another one runs, or which found no cell; keep its message till then.

        Args:
            effect: for what it waits; empty where that is not known, and of what waits for a cell.
            parcel: the original message, packed.

        Raises:
            StaleDelivery: the message has a newer start, or none.
            LedgerFull: ``limit_bytes`` of what is parked are reached.
        """
        words: dict[str, Any] = {"effect": effect, "parcel": parcel, "limit_bytes": limit_bytes}
        if self._scripts.call("await_effect", mid=mid, start=start, **words)[0] is Code.HELD:
            raise LedgerFull(_FULL)
