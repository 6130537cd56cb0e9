"""How a worker's processes show that they live: heartbeats, and a subscribed connection each (EMS-2)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_poison.errors import ConfigurationError, Fenced, LedgerUnavailable
from celery_poison.forking import no_fork
from celery_poison.ledger.writer import Writer, command
from celery_poison.worker import native
from celery_poison.worker.lease import clock

if TYPE_CHECKING:
    from celery_poison.worker.worker import Worker

#: Seconds after which a shutdown is told at the latest.
TICK = 0.5
#: Seconds for which a starting worker waits for its first heartbeat at most.
FIRST_BEAT = 5.0


class Heartbeat:
    """The main process's thread that beats; solo pools block the event loop, so that it cannot live there.

    It has connections of its own: with gevent and eventlet, a thread may share none with greenlets.
    """

    def __init__(self, runtime: Worker) -> None:
        self._runtime = runtime
        self._ledger = runtime.plugin.open_ledger()
        self._writer = Writer(self._ledger.client, self._ledger.keys.channel(runtime.worker))
        self._interval = runtime.settings.heartbeat_interval
        self._first = True
        self._due = 0.0
        self._told_run_id = ""
        self._told_stopping = False
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            native.start(self._work, "poison-heartbeat")
            # A death before the first heartbeat would be nobody's: no task may run before it.
            patience = clock() + FIRST_BEAT
            while not self._due and clock() < patience:
                time.sleep(0.01)

    def _work(self) -> None:
        while not self._runtime.ended:
            try:
                self._live()
            except Exception as error:  # without this thread the worker would be taken for dead
                self._runtime.complain(error)
                time.sleep(TICK)

    def _live(self) -> None:
        with no_fork():
            self._writer.open()  # at once when it broke: a connection that stays away means death
            self._runtime.run_id = self._writer.run_id
            if self._is_due():
                self.beat()
        self._writer.wait(min(TICK, max(0.0, self._due - clock())))

    def _is_due(self) -> bool:
        # A shutdown is told at once: dying under its tombstone is no crash.
        tombstone = self._runtime.stopping and not self._told_stopping
        moved = self._writer.run_id != self._told_run_id
        return tombstone or moved or clock() >= self._due

    def beat(self) -> None:
        """Send one heartbeat; an error is reported and the next beat tries again."""
        runtime = self._runtime
        self._writer.follow()
        runtime.exits.look()
        began, stopping, run_id = clock(), runtime.stopping, self._writer.run_id
        try:
            runtime.health.ensure_enrolled(self._ledger)
            self._ledger.beat(runtime.worker, runtime.about(), first=self._first, run_id=run_id)
        except Fenced:
            self._first = True
            if not runtime.ended:
                runtime.rejoin.taken_for_dead()
                self.beat()
            return
        except (LedgerUnavailable, ConfigurationError) as error:
            runtime.complain(error)
            runtime.health.is_up = False
            runtime.lease.unknown()
        else:
            self._first = False
            self._told_stopping, self._told_run_id = stopping, run_id
            runtime.health.is_up = True
            runtime.lease.confirmed(began)
        self._due = began + self._interval


def keep_child_alive(writer: Writer, lease_key: str, heartbeat: float, activation: float) -> None:
    """Start the thread of a pool process that keeps its own lease and its connection.

    Args:
        lease_key: key that lives while this process does.
        heartbeat, activation: seconds.
    """
    renewal = command(b"SET", lease_key.encode(), b"1", b"PX", b"%d" % int(activation * 1000))

    def work() -> None:
        while True:
            with no_fork():
                writer.follow()
                writer.send(renewal)
            writer.wait(heartbeat)  # shorter when the connection breaks: then it is opened anew at once

    native.start(work, "poison-heartbeat")
