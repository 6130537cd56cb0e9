"""Everything celery_poison holds in one worker's main process, put together."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Celery

from celery_poison.broker.held import Holdings
from celery_poison.broker.renewal import Renewal
from celery_poison.broker.transport import guarded_connection
from celery_poison.errors import LedgerUnavailable
from celery_poison.evidence import Evidence
from celery_poison.guard import give_back_acks
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.sandbox.channel import Prepare
from celery_poison.sandbox.pool import Cells
from celery_poison.sandbox.trial import Death, TimeLimits
from celery_poison.worker import child, in_cell
from celery_poison.worker.announce import Announcer, Complaints
from celery_poison.worker.background import Background, Retry
from celery_poison.worker.blocklist import BlockList, Checker, Fingerprints
from celery_poison.worker.crash_reports import open_crash_reports
from celery_poison.worker.deferred_cleanup import DeferredCleanup
from celery_poison.worker.durable import open_durable
from celery_poison.worker.exits import Exits
from celery_poison.worker.health import Health
from celery_poison.worker.heartbeat import Owners, Payload, Vitals
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.loop import EventLoop
from celery_poison.worker.outcome import Outcomes, Ownership
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.receive import AdmitMarks
from celery_poison.worker.reconnect_cleanup import ReconnectCleanup, hear_of_begun
from celery_poison.worker.recorder import open_recorder
from celery_poison.worker.refresh import Refresher
from celery_poison.worker.rejoin import Incarnation, Rejoin
from celery_poison.worker.resync import TELL_AGAIN, MasterFollower, Resync, ResyncWindow

#: Seconds a shutdown waits for decisions that are not on record yet.
FAREWELL = 5.0
#: Seconds between two settlings of what was acknowledged.
TIDY_PAUSE = 0.25


class Worker:
    """One worker.

    Raises:
        ConfigurationError: a setting is wrong, Redis is too old, may evict keys at will or cannot
            promise what ``poison_durability`` asks for, or the ledger belongs to another app.
        LedgerUnavailable: only with ``poison_fail_open=False``.

    Attributes:
        observes: nothing may become of a message but what Celery makes of it (``poison_observe_only``).
        policies: task name -> (policy, whether it diverts); updated in place, since others hold it too.
        contained: whether tasks share this process.
        epoch: number of the present broker connection; changes when it is lost, too.
        run_id: of the Redis at which this process is subscribed to its channel; empty while it is not.
        ended: it said farewell, and must not beat any more.
    """

    def __init__(
        self,
        app: Celery,
        hostname: str,
        pool: str,
        concurrency: int,
        *,
        contained: bool,
        limits: TimeLimits,
    ) -> None:
        self.app = app
        self.plugin: Plugin = plugin_of(app)
        self.settings = settings = self.plugin.settings
        self.observes = settings.observe_only
        if self.observes:
            give_back_acks(app)
        self.policies = self.plugin.policies
        self.contained = contained
        self.activation_ms = int(settings.activation_interval * 1000)
        self.epoch = self._connections = 0
        self.run_id = ""
        self.stopping = self.ended = self._begun = False

        self.me = Incarnation(hostname)
        self._about = Payload(app, self.me, settings.release, pool, concurrency)
        self.complain = Complaints()
        self.loop = EventLoop()
        self.background = Background(self.complain)
        self.announce = Announcer(lambda: self.consumer)
        self.inflight = InFlight()
        self._open_ledger()
        self._prepare_keeping()
        self._prepare_endings()
        self._prepare_for_losses()
        self.crash_reports = open_crash_reports(self.complain)
        self.exits = Exits(self.crash_reports)
        self.vitals = Vitals(self.complain)
        self.cells = Cells(self, settings, limits, lease=self.lease.fd, slots=concurrency)
        child.configure(self.recorder, self.ledger, self.lease, contained=contained, observing=self.observes)
        self._connect_as_myself()
        self.health.check(self.ledger, self._durable, self.resync_window.meet_first)

    def _open_ledger(self) -> None:
        settings, self.ledger = self.settings, self.plugin.open_ledger()
        # One connection for all notes of a process: Redis must see them in the order they were made.
        channel = self.ledger.keys.channel(self.worker)
        self.writer = Writer(self.ledger.client, channel, on_connect=child.still_running)
        self.lease = Lease(settings.activation_interval)
        self._durable = open_durable(settings, self.ledger, self.writer)
        self.recorder = open_recorder(
            settings, self.ledger, self.writer, self.me.node, self.policies, self._durable
        )
        self.admit_marks = AdmitMarks(self.writer, self.ledger.keys)
        self.health = Health(self.app, settings, self.recorder, self.complain)

    def _prepare_keeping(self) -> None:
        """What goes by policies and by the block list."""
        fingerprints = Fingerprints(self.complain)
        self.blocks = BlockList(self.ledger, self.complain)
        self.checker = Checker(self.blocks, fingerprints, self.recorder, self.complain)
        self.refresher = Refresher(
            self.plugin,
            self.ledger,
            self.health,
            self.policies,
            self.blocks,
            self.announce,
            self.loop,
            self.complain,
        )
        self.quarantine_writer = QuarantineWriter(
            self.ledger,
            self.policies,
            fingerprints,
            self.recorder,
            self.refresher,
            self.announce,
            self.loop,
            self.settings.release,
        )

    def _prepare_endings(self) -> None:
        """What takes starts off the ledger, and remembers them for a Redis that has forgotten."""
        beat = self.settings.heartbeat_interval
        tell_again = TELL_AGAIN + (beat if self.writer.follows_master else 0.0)
        self.resync_window = ResyncWindow(self.settings.activation_interval, tell_again)
        self._deferred_cleanup = DeferredCleanup(self.ledger)
        self.resync = Resync(
            self.ledger,
            self.me,
            beat,
            self.resync_window,
            self._deferred_cleanup,
            self.inflight,
            self.background,
            lambda: self.holdings.owes_acknowledgements,
        )
        self.master_follower = MasterFollower(self.writer, self.resync, self.health, self.loop, beat)
        self.outcomes = Outcomes(
            self.me,
            self.settings,
            self.ledger,
            Ownership(self.ledger, self.lease, self.recorder),
            self.background,
            self.loop,
            self._deferred_cleanup,
            self.resync,
            self.inflight,
            self.quarantine_writer,
            self.announce,
            lambda: self.stopping,
        )

    def _prepare_for_losses(self) -> None:
        """What is done when a broker connection is lost, and when this worker was taken for dead."""
        self._reconnect_cleanup = ReconnectCleanup(
            self.ledger, self.inflight, self.background, self.me, self.lease
        )
        self._owners = Owners(self.ledger)
        self.holdings = Holdings(self.inflight.tags_in_use, self._channel_closes)
        self._renewal = Renewal(self.holdings, self.settings.heartbeat_interval, self.complain)
        self.rejoin = Rejoin(
            self.me,
            self.lease,
            self.ledger,
            self.inflight,
            self.loop,
            self.complain,
            self.settings.activation_interval,
            observes=self.observes,
        )

    def _connect_as_myself(self) -> None:
        """Let every broker connection from now on carry the boot id of this incarnation, or a later one."""
        if self.observes:
            return  # Celery's own transport
        self.app.amqp.Connection = guarded_connection(
            lambda: self.me.boot_id, self._owners.is_alive, self.holdings
        )

    # --- what others ask -----------------------------------------------------------------------

    @property
    def worker(self) -> str:
        """Its name in the ledger."""
        return self.me.worker

    @property
    def secret(self) -> bytes:
        """The key of fingerprints; empty until it is known."""
        return self.recorder.secret

    @property
    def consumer(self) -> Any:
        """Celery's consumer of the present broker connection; None before the first."""
        return self.loop.consumer

    def may_start(self) -> bool:
        """Whether tasks may be started at this moment.

        Not while the ledger is away (``poison_fail_open=False``), and not while this worker, taken for
        dead, is still being recovered from: what it started now would be taken for dead too.
        """
        if self.observes:
            return True
        known_to_live = not self.rejoin.is_fenced and not self.lease.is_doubtful()
        return known_to_live and (self.health.is_up or self.settings.fail_open)

    def identity(self) -> tuple[str, str]:
        """Return the name under which this worker's monitor competes, and where it is subscribed.

        The name stays the same when the worker rejoins, as its connections do.
        """
        return self.me.first_worker, self.run_id

    def about(self) -> dict[str, str | int]:
        """Return what a heartbeat tells about this worker."""
        return self._about.now(
            stopping=self.stopping,
            reconnected=self._connections > 1,
            unguarded=self._deferred_cleanup.missing,
            ledger_errors=self.complain.count,
            vitals=self.vitals.tell(),
        )

    # --- what its sandbox asks ------------------------------------------------------------------

    def call_in_loop(self, call: Callable[[], Any]) -> None:
        """Run ``call`` on the event loop, soon; from any thread."""
        self.loop.call_in_loop(call)

    def prepare_cell(self) -> Prepare:
        """Return what makes a fresh process one that runs tasks for this worker."""
        reports = self.crash_reports.path if self.crash_reports else ""
        facts = in_cell.WorkerFacts(
            self.worker, self.plugin.ledger_url, self.settings.namespace, self.secret, reports
        )
        return partial(in_cell.prepare, facts)

    def explain(self, pid: int, death: Death) -> Evidence:
        """Return what is known about the death of a cell; it is kept for whoever asks for ``pid`` later."""
        return self.exits.of_cell(pid, death)

    # --- its life ------------------------------------------------------------------------------

    def connected(self, consumer: Any) -> None:
        """A broker connection begins; deliveries of earlier ones are void."""
        self.disconnected()
        self._connections += 1
        self.rejoin.is_fenced = False
        self.exits.watch(consumer.pool)
        self.resync_window.broker_forgets = consumer.connection.transport.driver_type == "redis"
        if self._connections > 1:
            self.resync_window.reconnected()
        self._reconnect_cleanup.drop()
        self.resync.connection_lost()
        self.resync.broker_is_away = False
        self.loop.attach(consumer)
        if not self.observes:
            self._renewal.start()
            self._renewal.soon()

    def disconnected(self) -> None:
        """The broker connection is gone: what came by it and has not begun is void, and delivered again."""
        self.epoch += 1
        self._reconnect_cleanup.refuse()

    def _channel_closes(self, channel: Any) -> None:
        consumer = getattr(self.consumer, "task_consumer", None)
        if consumer is not None and consumer.channel is channel:
            self.disconnected()
            hear_of_begun(self.consumer)

    def begin(self) -> None:
        """Start what runs beside the event loop, once the pool has forked. Safe to call again."""
        if not self._begun:
            self._begun = True
            self.writer.open()  # now, and not when the event loop has something to note
            self.background.start()
            self.background.do(self._tidy_for_ever)
            self.background.do(self.refresher.go_on)
            if self.writer.follows_master:
                self.background.do(self.master_follower.go_on)

    def _tidy_for_ever(self) -> None:
        self.rejoin.go_through()
        self._owners.read()
        # Nothing is forgotten here while Redis is away: it may come back having forgotten more than that.
        if self.writer.open():
            self.master_follower.heard_from(self.writer.run_id)
            self.resync.settle()
            self.resync.recheck()
        raise Retry(TIDY_PAUSE)

    def farewell(self) -> None:
        """Leave the books clean: what still runs was interrupted by the shutdown, nobody is to blame.

        Whoever still holds messages says none: others declare it dead, and put them back.
        """
        self.cells.end()
        self.background.finish(FAREWELL)
        self.loop.drain()
        self.ended = True
        try:
            self._deferred_cleanup.settle(everything=True)
            self.outcomes.take_back_all()
            if self._gives_everything_back():
                self.ledger.retire(self.worker)
                if self.me.rejoins:
                    self.ledger.retire(self.me.first_worker)
        except LedgerUnavailable as error:
            self.complain(error)
        if self.crash_reports is not None:
            self.crash_reports.remove()

    def _gives_everything_back(self) -> bool:
        over = time.monotonic() + FAREWELL
        while not self.holdings.leave_for_good():
            if time.monotonic() > over:
                return False
            time.sleep(TIDY_PAUSE)
        return True
