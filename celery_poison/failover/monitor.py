"""Every worker carries a monitor; the one that holds the lock declares silent workers dead (EMS-3)."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import signals
from celery_poison.errors import Fenced, LedgerUnavailable
from celery_poison.failover.parking import Parking
from celery_poison.failover.recovery import Flagged, Recovery
from celery_poison.forking import no_fork
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.settings import Settings

logger = get_logger("celery_poison")


class Monitor:
    """Watches the leases of all workers.

    A silence counts only if this monitor could have heard a sound: after Redis was away, or after this
    process was paused, it listens for a whole activation interval before it believes in any death.

    Args:
        app: the Celery app, whose broker the messages are put back on.
        worker: the incarnation in whose name the lock is taken.
        flagged: is told of every message that becomes a candidate.
    """

    def __init__(
        self, app: Celery, ledger: Ledger, settings: Settings, worker: str, flagged: Flagged
    ) -> None:
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._worker = worker
        self._interval = settings.heartbeat_interval
        self._activation = settings.activation_interval
        self._recovery = Recovery(app, ledger, flagged)
        self._parking = Parking(app, ledger, settings)
        self._listening_since = time.monotonic()
        self._last_round = time.monotonic()
        self._next_sweep = 0.0
        self._fence: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-monitor", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.wait(self._interval / 2):
            try:
                with no_fork():
                    self.round()
            except (LedgerUnavailable, Fenced) as error:
                self._hear_nothing()
                logger.debug("celery_poison: the monitor pauses: %s", error)
            except Exception:
                self._hear_nothing()
                logger.exception("celery_poison: the monitor failed; it goes on with its next round")

    def _hear_nothing(self) -> None:
        self._listening_since = time.monotonic()

    def round(self) -> None:
        """One look at all leases; acts only while this monitor holds the lock."""
        now = time.monotonic()
        if now - self._last_round > self._activation:
            self._hear_nothing()  # this process itself was paused
        self._last_round = now
        if not self._take_lock() or now - self._listening_since < self._activation:
            return
        for worker in self._silent_workers():
            self._bury(worker)
        for worker, incident in self._queries.open_incidents().items():
            self._recover(worker, incident)
        if now >= self._next_sweep:
            self._next_sweep = now + self._activation / 2
            self._recovery.sweep_orphans(self._activation)
        self._parking.round()

    def _take_lock(self) -> bool:
        led = self._ledger.lead(self._worker, int(self._activation * 1000))
        if led is None:
            self._fence = None
            return False
        self._fence, changed = led
        if changed:
            logger.info("celery_poison: this worker's monitor is the active one now (fence %d)", self._fence)
            signals.monitor_changed.send(sender=None, worker=self._worker, fence=self._fence)
        return True

    def _silent_workers(self) -> list[str]:
        horizon = self._queries.now_ms() - int(self._activation * 1000)
        return [worker for worker, beat in self._queries.leases().items() if beat <= horizon]

    def _bury(self, worker: str) -> None:
        assert self._fence is not None
        incident = uuid4().hex[:12]
        cause = self._ledger.bury(worker, incident, int(self._activation * 1000), self._fence)
        if cause is not None:
            logger.error("celery_poison: worker %s is dead (%s), incident %s", worker, cause, incident)
            signals.worker_lost.send(sender=None, worker=worker, incident=incident, cause=cause)

    def _recover(self, worker: str, incident: str) -> None:
        signals.failover_started.send(sender=None, worker=worker, incident=incident)
        flagged, put_back = self._recovery.recover(worker, incident)
        self._ledger.close(worker, incident, flagged=flagged, put_back=put_back)
        logger.warning(
            "celery_poison: worker %s: %d messages flagged, %d put back", worker, flagged, put_back
        )
        signals.failover_finished.send(
            sender=None, worker=worker, incident=incident, put_back=put_back, flagged=flagged
        )
