"""How a worker's processes show that they live: heartbeats, and a subscribed connection each (EMS-2)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_poison.errors import ConfigurationError, Fenced, LedgerUnavailable
from celery_poison.forking import no_fork
from celery_poison.ledger.wire import Wire, command
from celery_poison.worker.lease import clock

if TYPE_CHECKING:
    from celery_poison.worker.runtime import Runtime

logger = get_logger(__name__)

#: Seconds after which a shutdown is told at the latest.
TICK = 0.5


class Pulse:
    """The main process's thread that beats; solo pools block the event loop, so that it cannot live there."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._interval = runtime.settings.heartbeat_interval
        self._first = True
        self._due = 0.0
        self._told_run_id = ""
        self._told_stopping = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._runtime.wire.open()
            self.beat()
            self._thread = threading.Thread(target=self._work, name="poison-pulse", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        wire = self._runtime.wire
        while not self._stop.is_set():
            if not wire.wait(min(TICK, max(0.0, self._due - clock()))):
                with no_fork():
                    wire.open()  # at once: a connection that stays away means death
            if self._is_due():
                with no_fork():
                    self.beat()

    def _is_due(self) -> bool:
        # A shutdown is told at once: dying under its tombstone is no crash.
        tombstone = self._runtime.stopping and not self._told_stopping
        moved = self._runtime.wire.run_id != self._told_run_id
        return tombstone or moved or clock() >= self._due

    def beat(self) -> None:
        """Send one heartbeat; an error is reported and the next beat tries again."""
        runtime = self._runtime
        began, stopping, run_id = clock(), runtime.stopping, runtime.wire.run_id
        self._due = began + self._interval
        try:
            runtime.ensure_enrolled()
            runtime.ledger.beat(runtime.worker, runtime.about(), first=self._first, run_id=run_id)
        except Fenced:
            self._first = True
            self._due = 0.0
            runtime.taken_for_dead()
        except (LedgerUnavailable, ConfigurationError) as error:
            runtime.complain(error)
            runtime.ledger_is_up = False
            runtime.lease.unknown()
        else:
            self._first = False
            self._told_stopping, self._told_run_id = stopping, run_id
            runtime.ledger_is_up = True
            runtime.lease.confirmed(began)


def keep_child_alive(wire: Wire, lease_key: str, heartbeat: float, activation: float) -> None:
    """Start the thread of a pool process that keeps its own lease and its connection.

    Args:
        lease_key: key that lives while this process does.
        heartbeat, activation: seconds.
    """
    renewal = command(b"SET", lease_key.encode(), b"1", b"PX", b"%d" % int(activation * 1000))

    def work() -> None:
        while True:
            with no_fork():
                wire.send(renewal)
            wire.wait(heartbeat)  # shorter when the connection breaks: then it is opened anew at once

    threading.Thread(target=work, name="poison-pulse", daemon=True).start()
