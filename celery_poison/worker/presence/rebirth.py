"""What a worker does that was taken for dead, and lives (EMS-8).

Others have put back what it held, and may be running it. What waits here is dropped. What runs goes on, and
is this worker's again unless somebody else has started it meanwhile.
"""

from __future__ import annotations

from functools import partial

from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.worker.bridge import Bridge
from celery_poison.worker.complaints import Complaints
from celery_poison.worker.presence.incarnation import Incarnation
from celery_poison.worker.presence.whereabouts import Whereabouts
from celery_poison.worker.running.lease import Lease

logger = get_logger("celery_poison")


class Rebirth:
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
        whereabouts: Whereabouts,
        bridge: Bridge,
        complain: Complaints,
        activation: float,
        *,
        observes: bool,
    ) -> None:
        self._me = me
        self._lease = lease
        self._ledger = ledger
        self._whereabouts = whereabouts
        self._bridge = bridge
        self._complain = complain
        self._activation = activation
        self._observes = observes
        self._must_return = False
        self.is_fenced = False

    def taken_for_dead(self) -> None:
        """Take a new name (in the heartbeat's thread, which may share no connection with the clerk's)."""
        logger.critical(
            "celery_poison: this worker was silent for longer than poison_activation_interval=%s s,"
            " or cut off, and was taken for dead; its messages run elsewhere",
            self._activation,
        )
        self.is_fenced = not self._observes
        self._me.be_reborn()
        self._lease.reborn()
        self._must_return = not self._observes

    def go_through(self) -> None:
        """Take back what runs and is still this worker's, and begin afresh (in the clerk's thread)."""
        if not self._must_return:
            return
        self._must_return = False
        for request in self._whereabouts.in_pool():
            try:
                self._ledger.reclaim(request.mid, request.start())
            except StaleDelivery:
                self._bridge.call(request.end_stale)
            except LedgerUnavailable as error:
                self._complain(error)
        self._bridge.call(partial(self._bridge.start_afresh, "it was taken for dead"))
