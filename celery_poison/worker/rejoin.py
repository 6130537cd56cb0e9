"""The names under which one worker lives, and what it does when it was taken for dead, and lives (EMS-8).

It has a new name after each time. Others have put back what it held, and may be running it. What waits here
is dropped. What runs goes on, and is this worker's again unless somebody else has started it meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.worker.announce import Complaints
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.threads import EventLoop

logger = get_logger("celery_poison")


class Incarnation:
    """A worker as others know it at this moment.

    Args:
        node: its node name.

    Attributes:
        boot_id: what tells it from every other worker of that name; part of its tokens.
        rejoins: how often it rejoined.
        pid: of its main process.
        issued: number of the last token.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.pid = os.getpid()
        self.rejoins = 0
        self.boot_id = self._life = uuid4().hex[:16]
        self.issued = 0

    @property
    def worker(self) -> str:
        """Its name in the ledger."""
        return f"{self.node}/{self.boot_id}"

    @property
    def first_worker(self) -> str:
        """The name that it was born with, and that its connections keep."""
        return f"{self.node}/{self._life}"

    def next_token(self) -> str:
        """Return the fencing token of a new start (on the event loop)."""
        self.issued += 1
        return f"{self.boot_id}.{self.issued}"

    def rejoin(self) -> None:
        self.rejoins += 1
        self.boot_id = f"{self._life}r{self.rejoins}"


@dataclass(eq=False, repr=False)
class Rejoin:
    """Lets one worker live on under a new name.

    Args:
        activation: ``poison_activation_interval``, in seconds.
        observes: nobody puts back what it holds (``poison_observe_only``): a new name is all it needs.

    Attributes:
        is_fenced: it was taken for dead, and has no new broker connection yet.
    """

    me: Incarnation
    lease: Lease
    ledger: Ledger
    inflight: InFlight
    loop: EventLoop
    complain: Complaints
    activation: float
    observes: bool = field(kw_only=True)
    _must_return = False
    is_fenced = False

    def taken_for_dead(self) -> None:
        """Take a new name (in the heartbeat's thread, which shares no connection with the background's)."""
        logger.critical(
            "celery_poison: this worker was silent for longer than poison_activation_interval=%s s,"
            " or cut off, and was taken for dead; its messages run elsewhere",
            self.activation,
        )
        self.is_fenced = not self.observes
        self.me.rejoin()
        self.lease.rejoined()
        self._must_return = not self.observes

    def go_through(self) -> None:
        """Take back what runs and is still this worker's, and begin afresh (in the background thread)."""
        if not self._must_return:
            return
        self._must_return = False
        for request in self.inflight.in_pool():
            try:
                self.ledger.reclaim(request.mid, request.start())
            except StaleDelivery:
                self.loop.call_in_loop(request.end_stale)
            except LedgerUnavailable as error:
                self.complain(error)
        self.loop.call_in_loop(partial(self.loop.start_afresh, "it was taken for dead"))
