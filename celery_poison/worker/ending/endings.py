"""What a start leaves in the ledger when it is over and nobody is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_poison import causes
from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.records import Start
from celery_poison.settings import Settings
from celery_poison.worker.arrival.delivery import Delivery
from celery_poison.worker.clerk import Again, Clerk
from celery_poison.worker.ending.ownership import Ownership
from celery_poison.worker.presence.incarnation import Incarnation
from celery_poison.worker.presence.memory import Memory
from celery_poison.worker.presence.settler import Acknowledged, Settler
from celery_poison.worker.presence.whereabouts import Whereabouts
from celery_poison.worker.running.lease import birth_of
from celery_poison.worker.running.ticket import Ticket

#: Seconds between two looks at what must be judged first.
PAUSE = 0.25


class Endings:
    """Takes the starts of one worker off the ledger, or has the clerk do it."""

    def __init__(
        self,
        me: Incarnation,
        settings: Settings,
        ledger: Ledger,
        ownership: Ownership,
        clerk: Clerk,
        settler: Settler,
        memory: Memory,
        whereabouts: Whereabouts,
    ) -> None:
        self._me = me
        self._settings = settings
        self._ledger = ledger
        self._ownership = ownership
        self._clerk = clerk
        self._settler = settler
        self._memory = memory
        self._whereabouts = whereabouts

    def acknowledged(self, request: Any, ticket: Ticket, *, final: bool, copy: bool) -> None:
        """The broker was told that a delivery is done: forget its start.

        Args:
            final: nothing more comes of its task.
            copy: a copy of the message comes, or may: it is recognised by this start.
        """
        if birth_of(ticket.token) < self._me.births:
            self._clerk.do(partial(self._ownership.ended_too_late, request))
            return
        if copy:
            self._memory.keep(Acknowledged(0.0, ticket.mid, ticket.token, request.id, request.type))
        if request.poison is not None and not request.poison.is_ordinary:
            acquit = partial(self._ledger.acquit, ticket.mid, request.start(), final=final, copy=copy)
            over = time.monotonic() + 3 * self._settings.activation_interval
            self._clerk.do(partial(self._acquit, request.poison, acquit, over))
        elif not copy:
            self._settler.add(ticket.mid, ticket.token, request.id, request.type)

    def _acquit(self, delivery: Delivery, acquit: Callable[[], None], over: float) -> None:
        """What was overtaken must be judged first, or its death would flag a message that has ended."""
        if delivery.overtaken is not None and time.monotonic() < over:
            mid, raw = delivery.overtaken
            if Queries(self._ledger).entry(mid) == raw:
                raise Again(PAUSE)
        acquit()

    def interrupted(self, mid: str, start: Start) -> None:
        """A start ended through nobody's fault and its message goes back."""
        self._clerk.do(partial(self.interrupt, mid, start))

    def interrupt(self, mid: str, start: Start) -> None:
        """The same at once, by the caller's own thread."""
        known = {"release": self._settings.release}
        try:
            self._ledger.interrupt(mid, start, cause=causes.SHUTDOWN, known=known)
        except StaleDelivery:
            return

    def take_back_all(self) -> None:
        """Interrupt whatever this worker still has on record, now that it leaves.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        for mid, start, _ in Queries(self._ledger).running():
            if start.worker == self._me.worker:
                self.interrupt(mid, start)

    def never_started(self, delivery: Delivery, *, put_back: bool) -> None:
        """A delivery that was let in was revoked, expired or rejected before it went to the pool."""
        self._whereabouts.dropped(delivery.start.token)
        if put_back:
            self.interrupted(delivery.mid, delivery.start)
        else:
            self._clerk.do(partial(self._ledger.acquit, delivery.mid, delivery.start, final=True))
