"""How a worker shows that it lives: heartbeats, what they tell, and a subscribed connection (EMS-2).

What a heartbeat tells counts on the day on which the worker dies as a whole: nobody is left then to say how
much memory was in use, how much was allowed, or that it had been asked to leave.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_poison.errors import ConfigurationError, Fenced, LedgerUnavailable
from celery_poison.forking import no_fork
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.ledger.writer import Writer
from celery_poison.procfs import MemoryGroup
from celery_poison.worker import native
from celery_poison.worker.lease import clock
from celery_poison.worker.rejoin import Incarnation


class Payload:
    """The facts about one worker that stand in its ``worker`` hash.

    Args:
        release: ``poison_release``.
        pool: name of the pool's implementation.
        concurrency: tasks that it runs at once.
    """

    def __init__(self, app: Celery, me: Incarnation, release: str, pool: str, concurrency: int) -> None:
        self._app = app
        self._fixed: dict[str, str | int] = {
            "node": me.node,
            "pid": me.pid,
            "host": socket.gethostname(),
            "pool": pool,
            "concurrency": concurrency,
            "started_at": int(time.time() * 1000),
            "release": release,
        }

    def now(
        self, *, stopping: bool, reconnected: bool, unguarded: int, ledger_errors: int, vitals: str
    ) -> dict[str, str | int]:
        """Return all of it.

        Args:
            reconnected: it has lost its broker connection before.
            unguarded: starts or ends that never reached the ledger.
            vitals: what ``vitals.py`` has to tell.
        """
        return {
            **self._fixed,
            "queues": ",".join(sorted(self._app.amqp.queues.consume_from)),
            "stopping": int(stopping),
            "reconnected": int(reconnected),
            "unguarded": unguarded,
            "ledger_errors": ledger_errors,
            "vitals": vitals,
        }


class Vitals:
    """The vital signs of one worker, told by its main process.

    Args:
        complain: is told of an error here; a heartbeat does without them then.
    """

    def __init__(self, complain: Callable[[Exception], object]) -> None:
        self._complain = complain
        self._group = MemoryGroup()
        self._limit: dict[str, Any] = {
            "limit_kb": self._group.allowed() // 1024,
            "limit_of": "machine" if self._group.limit() is None else "group",
        }
        self._asked_by = ""
        self._asked_at: float | None = None

    def asked_to_leave(self, by: str = "") -> None:
        """Note that the worker was asked to leave, by a signal of that name; for signal handlers too."""
        if self._asked_at is None:
            self._asked_by, self._asked_at = by, clock()

    def tell(self) -> str:
        """Return them as JSON, see docs/keys.md; never raises."""
        try:
            told = {**self._limit, "used_kb": self._group.used() // 1024}
            if self._asked_at is not None:
                told.update(asked=self._asked_by, asked_ms=int((clock() - self._asked_at) * 1000))
            return json.dumps(told, separators=(",", ":"))
        except Exception as error:
            self._complain(error)
            return ""


class Owners:
    """Answers at once, from what was read last; what it cannot answer is read before the next sweep."""

    def __init__(self, ledger: Ledger) -> None:
        self._queries = Queries(ledger)
        self._asked: set[str] = set()
        self._known: dict[str, bool | None] = {}

    def is_alive(self, boot_id: str) -> bool | None:
        """Whether the worker with this boot id lives; None when nobody can say (on the event loop)."""
        self._asked.add(boot_id)
        return self._known.get(boot_id)

    def read(self) -> None:
        """Find out what was asked for (in the background thread).

        Raises:
            LedgerUnavailable: nothing is known then.
        """
        if not self._asked:
            return
        asked, self._asked, self._known = self._asked, set(), {}
        alive = {worker.rpartition("/")[2] for worker in self._queries.leases()}
        recovered_from = {worker.rpartition("/")[2] for worker in self._queries.open_incidents()}
        for boot_id in asked:
            # Its messages are put back after what it was running has been flagged, not before.
            self._known[boot_id] = None if boot_id in recovered_from else boot_id in alive


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
