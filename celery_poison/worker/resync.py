"""What this worker remembers for a Redis that may have forgotten it.

The processes that run tasks tell by themselves what they are running, first thing on a new connection.
What has ended is told here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.model import Ended, Phase, Start
from celery_poison.worker.background import Background
from celery_poison.worker.deferred_cleanup import BATCH, FOR_A_COPY, Acknowledged, DeferredCleanup
from celery_poison.worker.incarnation import Incarnation
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.resync_window import ResyncWindow

logger = get_logger("celery_poison")

#: Seconds after a disturbance in which the ledger is compared with what is known here.
RECHECK_FOR = 30.0


class Resync:
    """Tells Redis again how starts of this worker ended.

    Args:
        me: the worker.
        pause: seconds between two looks at the ledger after a disturbance.
        owes: tells whether the broker has not heard of an acknowledgement.

    Attributes:
        broker_is_away: its connection was lost, and there is no other yet.
    """

    def __init__(
        self,
        ledger: Ledger,
        me: Incarnation,
        pause: float,
        resync_window: ResyncWindow,
        deferred_cleanup: DeferredCleanup,
        inflight: InFlight,
        background: Background,
        owes: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._me = me
        self._pause = pause
        self._resync_window = resync_window
        self._deferred_cleanup = deferred_cleanup
        self._inflight = inflight
        self._background = background
        self._owes = owes
        self.broker_is_away = False
        self._recheck_until = self._next_recheck = 0.0
        self._missing = 0
        #: Tokens on record that nobody here knew at the last look.
        self._unknown: set[str] = set()

    def heard_from(self, run_id: str, forgetful: Callable[[], object]) -> None:
        """Note which Redis answered; if it is another one, call ``forgetful`` and tell it everything."""
        if not self._resync_window.met(run_id):
            return
        logger.warning(
            "celery_poison: the ledger's Redis was restarted or replaced, and may have forgotten its last"
            " moments: it is told again what runs here, and what comes is looked up before it runs"
        )
        forgetful()
        if self._resync_window.broker_forgets:
            self._remind(self._deferred_cleanup.recent())
        self.disturbed()

    def connection_lost(self) -> None:
        """Keep what ended just now on record: nobody knows which acknowledgements the broker heard."""
        self.disturbed()
        keep_for = self._resync_window.grace if self._resync_window.broker_forgets else FOR_A_COPY
        self._remind(self._deferred_cleanup.connection_lost(keep_for))

    def settle(self) -> None:
        """Forget what was acknowledged, while there is a broker that has heard of it."""
        if not self.broker_is_away and not self._owes():
            self._deferred_cleanup.settle()

    def keep(self, end: Acknowledged) -> None:
        """Have it on record that a start ended, for the copy of its message that comes."""
        self._deferred_cleanup.keep([end], FOR_A_COPY)
        self._remind([end])

    def _remind(self, ended: Iterable[Acknowledged]) -> None:
        if told := list(ended):
            self._background.do(partial(self._tell, told))

    def _tell(self, ended: list[Acknowledged]) -> None:
        # Redis may have been away until now: what has been forgotten meanwhile is not put on record again.
        known = self._deferred_cleanup.tokens()
        starts = [(end.mid, self._start_of(end), Ended.DONE) for end in ended if end.token in known]
        for first in range(0, len(starts), BATCH):
            self._deferred_cleanup.missing += self._ledger.resync(starts[first : first + BATCH])

    def _start_of(self, end: Acknowledged) -> Start:
        worker = f"{self._me.node}/{end.token.partition('.')[0]}"
        return Start(Phase.RUNNING.value, end.token, worker, 0, 0, 1, 0, end.id, end.task, "", 0, 0, 0, 1)

    def recheck(self) -> None:
        """Take what is over off the ledger, for a while after a disturbance (NEW-9).

        Raises:
            LedgerUnavailable: the next call tries again.
        """
        now = time.monotonic()
        if self._deferred_cleanup.missing != self._missing:
            self._missing = self._deferred_cleanup.missing
            self.disturbed()
        if self._next_recheck <= now < self._recheck_until:
            self._next_recheck = now + self._pause
            self._compare()

    def disturbed(self) -> None:
        """Something may have been lost, or come late, on its way to the ledger."""
        self._recheck_until = time.monotonic() + RECHECK_FOR

    def _compare(self) -> None:
        """End the starts that the ledger takes for running, and nobody here knows of for two looks."""
        kept = self._deferred_cleanup.tokens()
        rows = Queries(self._ledger).running()
        mine = [row for row in rows if row[1].worker == self._me.worker and row[1].token not in kept]
        unknown = {start.token for _, start, _ in mine if not self._inflight.is_known(start)}
        for mid, start, raw in mine:
            if start.token in unknown & self._unknown:
                self._end(mid, start, raw)
        self._unknown = unknown

    def _end(self, mid: str, start: Start, raw: bytes) -> None:
        well = self._inflight.how_ended(start.token)
        if well:
            self._ledger.resync([(mid, start, Ended.DONE)])
            self._deferred_cleanup.keep(
                [Acknowledged(0.0, mid, start.token, start.id, start.task)], self._resync_window.grace
            )
        elif well is None and start.phase == Phase.RUNNING:
            with suppress(StaleDelivery):
                self._ledger.interrupt(mid, start, cause=causes.UNKNOWN)
        else:
            self._ledger.claim(mid, raw, None)
