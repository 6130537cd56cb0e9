"""A delivery that may not begin yet: it waits in memory for a moment, and then in the ledger (TP1-8).

An earlier start of its message has not ended, its task is paused, or it has no turn yet. In the background.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_poison.basics.parts import Asked, Hold, Turn
from celery_poison.cells.pool import Cells
from celery_poison.decide import Action, Verdict
from celery_poison.errors import LedgerFull, LedgerUnavailable
from celery_poison.keep.stored_message import original, pack
from celery_poison.ledger.messages import MessageState
from celery_poison.model import Start
from celery_poison.worker.delivery import Delivery, names_of
from celery_poison.worker.full import ask_again, most_parked
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

#: Seconds between two look-ups of a message: where its earlier start has not ended, and else.
SOON, PATIENCE = 0.1, 0.25
#: Seconds for which such a message is held in memory before it is parked.
PARK_AFTER = 2.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Waiting:
    """Keeps the deliveries of one worker from beginning; ``Retry``: it asks again.

    Attributes:
        askers: those of the holds that are asked about each message.
        acknowledge: takes a delivery that is in the ledger.
    """

    site: Site
    holds: Sequence[Hold]
    askers: Sequence[Hold]
    cells: Cells
    acknowledge: Callable[[Delivery], None]

    def wait(self, delivery: Delivery, recorded: MessageState) -> None:
        """Hold the message for a moment, since most starts end soon; then park it."""
        now = time.monotonic()
        if delivery.waits_since is None:
            delivery.waits_since = now
        if now - delivery.waits_since < PARK_AFTER:
            raise Retry(SOON)
        self._park(delivery, recorded.raw, delivery.start)

    def _is_paused(self, delivery: Delivery) -> bool:
        if delivery.postponed is not None:
            return True
        if delivery.paused and delivery.park:  # the monitor published it: it may know better
            task = delivery.start.task
            delivery.paused = any(hold.parks(task, as_of_now=True) for hold in self.holds)
        return delivery.paused

    def turn_of(self, delivery: Delivery, verdict: Verdict) -> Turn:
        """Return the turn of a message; with an ETA, or acknowledged early, it begins as ever."""
        if self._is_paused(delivery) or (delivery.caught is not None and delivery.caught.awaits):
            return Turn.PARK
        start, cells = delivery.start, self.cells
        asking = [hold for hold in self.askers if start.diverts and hold.asks(start.task)]
        if not asking or names_of(delivery.message).get("eta"):
            return Turn.BEGIN
        turn = asking[0].turn(
            Asked(
                task=start.task,
                mid=delivery.mid,
                token=start.token,
                is_suspect=verdict.action is Action.RUN_ALONE,
                room=cells.room if cells.can_be else None,
                slots=cells.host.pool.slots,
            )
        )
        if turn is Turn.SOON:
            raise Retry(SOON)
        return turn

    def park_freely(self, delivery: Delivery, recorded: MessageState, start: Start) -> None:
        """Park it although no earlier start is in its way."""
        if recorded.raw and not self.site.ledger.messages.claim(delivery.mid, recorded.raw, None):
            raise Retry(0.0)
        self._park(delivery, b"", start)

    def _park(self, delivery: Delivery, seen: bytes, start: Start) -> None:
        """On record first, acknowledged afterwards: a copy that comes in between is recognised."""
        stored, park = pack(original(delivery.message)), self.site.ledger.parking.park
        try:
            words: dict[str, Any] = {"number": delivery.park, "limit_bytes": most_parked(self.site)}
            if delivery.postponed is not None:
                words |= delivery.postponed._asdict()
            elif delivery.caught is not None and not seen:
                words |= {"awaits": delivery.caught.awaits, "note": "for a hold by value"}
            if not park(delivery.mid, seen, start, parcel=stored, **words):
                raise Retry(0.0 if delivery.is_unique else PATIENCE)
        except LedgerFull as error:  # it stays with the broker, whose it is until then
            raise ask_again(error) from error
        except LedgerUnavailable as error:  # it stays in memory: letting it in would run it twice
            self.site.complain(error)
            raise Retry(PATIENCE) from error
        self.acknowledge(delivery)
