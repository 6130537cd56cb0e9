"""The worker's heartbeat: renews its lease, settles what was acknowledged, reports its health."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_poison.errors import ConfigurationError, Fenced, LedgerUnavailable
from celery_poison.forking import no_fork

if TYPE_CHECKING:
    from celery_poison.worker.runtime import Runtime

logger = get_logger(__name__)

#: Seconds between two settlings; heartbeats may be rarer.
TICK = 0.5


class Pulse:
    """A thread that beats; solo pools block the event loop, so that it cannot live there."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._interval = runtime.settings.heartbeat_interval
        self._first = True
        self._told_stopping = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self.beat()
            self._thread = threading.Thread(target=self._work, name="poison-pulse", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        due = time.monotonic() + self._interval
        while not self._stop.wait(min(TICK, self._interval)):
            # A shutdown is told at once: dying under its tombstone is no crash.
            tombstone = self._runtime.stopping and not self._told_stopping
            if tombstone or time.monotonic() >= due:
                due = time.monotonic() + self._interval
                with no_fork():
                    self.beat()
            with no_fork():
                self._settle()

    def beat(self) -> None:
        """Send one heartbeat; an error is reported and the next beat tries again."""
        runtime = self._runtime
        stopping = runtime.stopping
        try:
            runtime.ensure_enrolled()
            runtime.ledger.beat(runtime.worker, runtime.about(), first=self._first)
        except Fenced:
            runtime.fenced = runtime.is_being_recovered_from()
            logger.critical(
                "celery_poison: this worker was silent for longer than poison_activation_interval=%s s"
                " and was taken for dead; its messages run elsewhere",
                runtime.settings.activation_interval,
            )
        except (LedgerUnavailable, ConfigurationError) as error:
            runtime.complain(error)
            runtime.ledger_is_up = False
            return
        else:
            runtime.fenced = False
        self._first = False
        self._told_stopping = stopping
        runtime.ledger_is_up = True

    def _settle(self) -> None:
        try:
            self._runtime.settler.settle()
        except LedgerUnavailable as error:
            self._runtime.complain(error)
