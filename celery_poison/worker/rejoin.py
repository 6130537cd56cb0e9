"""What a worker does that was taken for dead, and lives (EMS-8).

Others have put back what it held, and may be running it. What waits here is dropped. What runs goes on, and
is this worker's again unless somebody else has started it meanwhile.
"""

from __future__ import annotations

from functools import partial

from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.worker.complaints import Complaints
from celery_poison.worker.incarnation import Incarnation
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.loop import EventLoop

logger = get_logger("celery_poison")


class Rejoin:
    """Lets one worker live on under a new name.

    Args:
        activation: ``poison_activation_interval``, in seconds.
        observes: nobody puts back what it holds (``poison_observe_only``): a new name is all it needs.

    Attributes:
        is_fenced: it was taken for dead, and has no new broker connection yet.
    """

    def __init__(
        self,
        me: Incarnation,
        lease: Lease,
        ledger: Ledger,
        inflight: InFlight,
        loop: EventLoop,
        complain: Complaints,
        activation: float,
        *,
        observes: bool,
    ) -> None:
        self._me = me
        self._lease = lease
        self._ledger = ledger
        self._inflight = inflight
        self._loop = loop
        self._complain = complain
        self._activation = activation
        self._observes = observes
        self._must_return = False
        self.is_fenced = False

    def taken_for_dead(self) -> None:
        """Take a new name (in the heartbeat's thread, which shares no connection with the background's)."""
        logger.critical(
            "celery_poison: this worker was silent for longer than poison_activation_interval=%s s,"
            " or cut off, and was taken for dead; its messages run elsewhere",
            self._activation,
        )
        self.is_fenced = not self._observes
        self._me.rejoin()
        self._lease.rejoined()
        self._must_return = not self._observes

    def go_through(self) -> None:
        """Take back what runs and is still this worker's, and begin afresh (in the background thread)."""
        if not self._must_return:
            return
        self._must_return = False
        for request in self._inflight.in_pool():
            try:
                self._ledger.reclaim(request.mid, request.start())
            except StaleDelivery:
                self._loop.call_in_loop(request.end_stale)
            except LedgerUnavailable as error:
                self._complain(error)
        self._loop.call_in_loop(partial(self._loop.start_afresh, "it was taken for dead"))
