"""How a worker shows that it lives: heartbeats, what they tell, and a subscribed connection (EMS-2).

What a heartbeat tells counts on the day on which the worker dies as a whole: nobody is left then to say how
much memory was in use, how much was allowed, or that it had been asked to leave.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from celery.worker.state import active_requests

from celery_poison.basics.calling import gather
from celery_poison.basics.forking import no_fork, real_thread_starter
from celery_poison.basics.parts import Hold, Service
from celery_poison.basics.procfs import MemoryGroup
from celery_poison.basics.pulse import ALIVE
from celery_poison.broker.kinds import broker_of
from celery_poison.cells.pool import Cells
from celery_poison.cells.trial import PoolFacts
from celery_poison.errors import ConfigurationError, Fenced, LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import plugin_of
from celery_poison.worker.health import Health
from celery_poison.worker.inflight import DeferredCleanup
from celery_poison.worker.lease import Lease, clock
from celery_poison.worker.pool_processes import Exits
from celery_poison.worker.rejoin import Rejoin
from celery_poison.worker.site import Site
from celery_poison.worker.threads import start_real_thread

#: Seconds after which a shutdown is told at the latest.
TICK = 0.5
#: Names of unguarded tasks that are told.
NAMED = 100
#: Seconds for which a starting worker waits for its first heartbeat at most.
FIRST_BEAT = 5.0


class Shutdown:
    """Whether this worker was asked to leave, and has left.

    Attributes:
        is_begun: it takes up nothing new; dying now is no crash.
        is_over: it said farewell, and must not beat any more.
        asked_by: the signal that asked for it; empty for another way.
        asked_at: when, by :func:`celery_poison.worker.lease.clock`; None: it was not asked.
    """

    def __init__(self) -> None:
        self.is_begun = self.is_over = False
        self.asked_by = ""
        self.asked_at: float | None = None

    def ask(self, by: str = "") -> None:
        """Begin, as asked; for signal handlers too."""
        self.is_begun = True
        if self.asked_at is None:
            self.asked_by, self.asked_at = by, clock()


class _Portrait(Protocol):
    def last(self) -> str: ...


class _Pulse(Protocol):
    """The part of :class:`celery_poison.worker.pulse_thread.WorkerPulse` that a heartbeat reads."""

    @property
    def portrait(self) -> _Portrait: ...

    @property
    def stack(self) -> Sequence[str]: ...

    @property
    def condemned_at(self) -> float | None: ...


class WorkerFacts:
    """The facts about one worker that stand in its ``worker`` hash.

    An error here is complained of, and the heartbeat does without that fact then.
    """

    def __init__(
        self,
        *,
        site: Site,
        pool: PoolFacts,
        cells: Cells,
        shutdown: Shutdown,
        holds: Sequence[Hold],
        rejoin: Rejoin,
        deferred_cleanup: DeferredCleanup,
        pulse: _Pulse,
    ) -> None:
        plugin, me = plugin_of(site.app), site.me
        self._app = site.app
        self._slots = pool.slots
        self.cells = cells
        self._shutdown = shutdown
        self._pulse = pulse
        self._loop = site.loop
        self._holds = holds
        self._rejoin = rejoin
        self._deferred_cleanup = deferred_cleanup
        self._complain = site.complain
        self._group = MemoryGroup()
        self._heard_at = time.monotonic()
        self._fixed: dict[str, str | int] = {
            "node": me.node,
            "pid": me.pid,
            "host": socket.gethostname(),
            "pool": pool.name,
            "concurrency": pool.slots,
            "started_at": int(time.time() * 1000),
            "release": plugin.settings.code_version,
            "machine": plugin.settings.node or os.environ.get("POISON_NODE", "")[:100],
            "guarded_tasks": plugin.guarded,
            "unguarded_tasks": ",".join(plugin.unguarded[:NAMED]),
            "observed_tasks": ",".join(plugin.observed[:NAMED]),
            **dict(gather(site.extensions.facts, site.complain, site)),
        }

    def now(self) -> dict[str, str | int]:
        """Return all of it."""
        return {
            **self._fixed,
            "queues": ",".join(sorted(self._app.amqp.queues.consume_from)),
            "paused": ",".join(queue for hold in self._holds for queue in hold.out()),
            "stopping": int(self.is_stopping),
            "room": self.cells.room,
            "cells": self.cells.lacks,
            "reconnected": int(self._rejoin.has_reconnected),
            "unguarded": self._deferred_cleanup.missing,
            "ledger_errors": self._complain.count,
            "quiet_ms": self._known(self._quiet_ms),
            "vitals": self._known(self._vitals),
            "portrait": self._known(self._pulse.portrait.last),
            "stack": json.dumps(self._pulse.stack, separators=(",", ":")),
        }

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to leave, or is about to be killed: dying now is no crash."""
        return self._shutdown.is_begun or self._pulse.condemned_at is not None

    def _known(self, fact: Callable[[], int | str]) -> int | str:
        try:
            return fact()
        except Exception as error:
            self._complain(error)
            return ""

    def _quiet_ms(self) -> int | str:
        """Return the ms since it last polled its broker or received a message (celery #8030, #9054).

        A worker whose slots or whose prefetch are full has no reason to: it counts as heard at that moment.
        Empty where that is unknown: on Celery's own transport.
        """
        consumer, now = self._loop.consumer, time.monotonic()
        channel = getattr(getattr(consumer, "task_consumer", None), "channel", None)
        if channel is not None:
            if (heard := broker_of(channel).last_heard(channel)) is None:
                return ""
            is_busy = heard.is_full or len(active_requests) >= self._slots
            self._heard_at = max(self._heard_at, now if is_busy else heard.at)
        return int((now - self._heard_at) * 1000)

    def _vitals(self) -> str:
        """Return memory in use, the limit, and who asked it to leave, as JSON, see docs/keys.md."""
        vitals: dict[str, Any] = {
            "limit_kb": self._group.allowed() // 1024,
            "limit_of": "machine" if self._group.limit() is None else "group",
            "used_kb": self._group.used() // 1024,
        }
        by, asked_at = self._shutdown.asked_by, self._shutdown.asked_at
        if self._pulse.condemned_at is not None:  # the signal of who restarts it comes after that
            by, asked_at = ALIVE, self._pulse.condemned_at
        if asked_at is not None:
            vitals.update(asked=by, asked_ms=int((clock() - asked_at) * 1000))
        return json.dumps(vitals, separators=(",", ":"))


class Owners:
    """Answers at once, from what was read last; what it cannot answer is read before the next sweep."""

    def __init__(self, ledger: Ledger) -> None:
        self._queries = ledger.read
        self._asked: set[str] = set()
        self._known: dict[str, bool | None] = {}

    def is_alive(self, boot_id: str) -> bool | None:
        """Whether the worker with this boot id lives; None when that is unknown (on the event loop)."""
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


def _nothing() -> None:
    pass


@dataclass(eq=False, repr=False)
class Heartbeat:
    """The main process's thread that beats; solo pools block the event loop, so that it cannot live there.

    It has connections of its own: with gevent and eventlet, a thread may share none with greenlets.

    Args:
        ledger: with a client of its own.

    Attributes:
        on_news: called in its thread when a nursery has said that a worker has ended.
        services: what it does beside, of extensions.
    """

    site: Site
    ledger: Ledger
    payload: WorkerFacts
    shutdown: Shutdown
    health: Health
    lease: Lease
    rejoin: Rejoin
    exits: Exits
    on_news: Callable[[], object] = field(default=_nothing, init=False)
    _first = True
    _due = 0.0
    _run_id = ""
    _sent_run_id = ""
    _sent_stopping = False
    _sent_room = 0
    _refused: int | None = None
    _started = _has_ended = False
    services: list[Service] = field(init=False)

    def __post_init__(self) -> None:
        keys, client = self.ledger.keys, self.ledger.client
        channel = keys.channel(self.site.me.worker)
        # Where the monitor is a greenlet, no real thread may wake it.
        news = keys.news if real_thread_starter() is None else ""
        self._writer = Writer(client, channel, news=news, on_news=self._hear)
        hooks = self.site.extensions.services
        self.services = gather(hooks, self.site.complain, self.site, self.exits)

    def identity(self) -> tuple[str, str]:
        """Return the name under which this worker's monitor competes, and the Redis where it is subscribed.

        The name stays the same when the worker rejoins, as its connections do. The run id is empty while it
        is subscribed nowhere.
        """
        return self.site.me.first_worker, self._run_id

    def _hear(self) -> None:
        self.on_news()

    def start(self) -> None:
        if not self._started:
            self._started = True
            start_real_thread(self._work, "poison-heartbeat")
            # A death before the first heartbeat would go unnoticed: no task may run before it.
            patience = clock() + FIRST_BEAT
            while not self._due and clock() < patience:
                time.sleep(0.01)

    def _work(self) -> None:
        while not self.shutdown.is_over:
            try:
                self._live()
            except Exception as error:  # without this thread the worker would be taken for dead
                self.site.complain(error)
                time.sleep(TICK)
        self._writer.close()
        self.ledger.disconnect()
        self._has_ended = True

    def end(self, patience: float) -> None:
        """Wait, once ``shutdown.is_over``, at most so many seconds for the thread to let go of everything."""
        until = clock() + patience
        self._writer.hang_up()
        while self._started and not self._has_ended and clock() < until:
            time.sleep(0.01)

    def _live(self) -> None:
        with no_fork():
            self._writer.open()  # at once when it broke: a connection that stays away means death
            self._run_id = self._writer.run_id
            if self._is_due():
                self.beat()
            pause = self._serve()
        self._writer.wait(min(pause, max(0.0, self._due - clock())))

    def _serve(self) -> float:
        """Do what extensions do beside; return the seconds until the next time."""
        pause = TICK
        for service in self.services:
            try:
                pause = min(pause, service(self._writer.send))
            except Exception as error:
                self.site.complain(error)
        return pause

    def _is_due(self) -> bool:
        # A shutdown is told at once: dying under its tombstone is no crash.
        tombstone = self.payload.is_stopping != self._sent_stopping
        moved = self._writer.run_id != self._sent_run_id
        # Suspects wait in the ledger for free cells: beat at once if there are some, none, or twice as many.
        room, sent = self.payload.cells.room, self._sent_room
        is_news = bool(room) != bool(sent) or room > 2 * sent
        return tombstone or moved or is_news or clock() >= self._due

    def beat(self) -> None:
        """Send one heartbeat; an error is reported and the next beat tries again."""
        self._writer.follow()
        self.exits.look()
        began, stopping, run_id = clock(), self.payload.is_stopping, self._writer.run_id
        room = self.payload.cells.room
        self.lease.asked()
        try:
            self.health.ensure_enrolled(self.ledger)
            now = self.payload.now()
            refused = self.ledger.fleet.beat(self.site.me.worker, now, first=self._first, run_id=run_id)
        except Fenced:
            self._first = True
            if not self.shutdown.is_over:
                self.rejoin.taken_for_dead()
                self.beat()
            return
        except (LedgerUnavailable, ConfigurationError) as error:
            self.site.complain(error)
            self.health.is_up = False
            self.lease.unknown()
        else:
            self._first = False
            self._sent_stopping, self._sent_run_id, self._sent_room = stopping, run_id, room
            if not self.health.is_up:  # what is written without an answer may lead nowhere since then
                self._writer.renew()
                self._writer.open()
            self.health.is_up = True
            self.lease.confirmed(began)
            if self._refused is not None and refused > self._refused:
                self.lease.refused()
            self._refused = refused
        self._due = began + self.site.settings.heartbeat_interval
