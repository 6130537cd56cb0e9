"""Builds what one worker's main process works with, gives each part what it needs, and keeps them going."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import Any

from celery import Celery

from celery_poison.basics.calling import gather, tell
from celery_poison.basics.forking import keep_from_forks
from celery_poison.broker.books import Books
from celery_poison.broker.renewal import Renewal
from celery_poison.broker.transport import guarded_connection
from celery_poison.cells.cell import Prepare
from celery_poison.cells.nursery import Nursery
from celery_poison.cells.pool import Cells
from celery_poison.cells.trial import Host, PoolFacts
from celery_poison.errors import LedgerUnavailable, PoisonError
from celery_poison.fleet.monitor import Monitor
from celery_poison.ledger.connection import ask_once
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import plugin_of
from celery_poison.upstream.acks import give_back_acks
from celery_poison.worker import child, crash_reports, seed
from celery_poison.worker.admission import Admission
from celery_poison.worker.announce import Announcer, Complaints, greet
from celery_poison.worker.blocklist import Checker, Fingerprints
from celery_poison.worker.broadcasts import Broadcasts
from celery_poison.worker.delays import Delays, can_lend
from celery_poison.worker.dispatcher import Dispatcher
from celery_poison.worker.durable import open_durable
from celery_poison.worker.health import Health, Refresher
from celery_poison.worker.heartbeat import Heartbeat, Owners, Shutdown, WorkerFacts
from celery_poison.worker.inflight import DeferredCleanup, InFlight
from celery_poison.worker.lease import Incarnation, Lease, keep_child_alive
from celery_poison.worker.leaving import Leaving
from celery_poison.worker.opening import Opening
from celery_poison.worker.outcome import Outcomes
from celery_poison.worker.plans import Plans
from celery_poison.worker.pool_processes import Exits
from celery_poison.worker.pulse_thread import WorkerPulse
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.rejoin import Rejoin
from celery_poison.worker.resync import TELL_AGAIN, Resync, ResyncWindow
from celery_poison.worker.road import Road
from celery_poison.worker.sending import RequestNeeds, release_requests
from celery_poison.worker.serving import Serving, release, serve
from celery_poison.worker.site import Site
from celery_poison.worker.standstill import Standstill
from celery_poison.worker.threads import Background, EventLoop, Retry
from celery_poison.worker.unprocessable import Unprocessable

#: Seconds a shutdown waits for decisions that are not on record yet, and for each thread that is to end.
FAREWELL = 5.0
PAUSE = 0.25


class GuardedWorker:
    """The parts of one worker. The bootsteps start and stop them.

    Args:
        nursery: forks its cells; or why there is none.

    Raises:
        ConfigurationError: a setting is wrong, Redis is too old, may evict keys at will or cannot
            promise what ``poison_durability`` asks for, or the ledger belongs to another app.
        LedgerUnavailable: only with ``poison_fail_open=False``.
    """

    _is_on_rounds = False

    def __init__(self, app: Celery, me: Incarnation, pool: PoolFacts, nursery: Nursery | str) -> None:
        self._app = app
        self._plugin = plugin_of(app)
        self._settings = self._plugin.settings
        if self._settings.observe_only:
            give_back_acks(app)
        self._pool = pool
        #: Updated in place, since others hold it too.
        self._policies = self._plugin.policies
        self._me = me
        self._inflight = InFlight()
        self.shutdown = Shutdown()
        self.complain = Complaints()
        self.loop = EventLoop()
        if pool.contained:  # an AMQP server gives back what it holds when the last copy is closed
            keep_from_forks(self.loop, lambda loop: loop.consumer.connection._connection.transport.sock)
        self.broadcasts = Broadcasts(app, self.loop)
        self._delays = Delays()
        self._background = Background(self.complain)
        self._announce = Announcer(self.loop)
        self._open_ledger()
        self._site = self._make_site()
        self._holds = gather(self._site.extensions.holds, self.complain, self._site)
        self._make_quarantine_writer()
        self._make_resync()
        self._make_outcomes()
        self._make_cells(nursery)
        self._make_road()
        self._make_heartbeat()
        self._configure_processes()
        try:
            self._health.check(self._ledger, self._durable, self._resync_window.meet_first)
        except PoisonError:
            self.release()
            raise
        greet(app, pool)

    def _open_ledger(self) -> None:
        settings, self._ledger = self._settings, self._plugin.open_ledger()
        # One connection for all notes of a process: Redis must see them in the order they were made.
        channel = self._ledger.keys.channel(self._me.worker)
        self._writer = Writer(
            self._ledger.client, channel, on_connect=partial(child.still_running, self._me.born_as)
        )
        self._lease = Lease(settings.activation_interval)
        self._durable = open_durable(settings, self._ledger, self._writer)
        asked = None if settings.observe_only else self._ledger
        self._recorder = Recorder(
            settings=settings,
            keys=self._ledger.keys,
            writer=self._writer,
            node=self._me.node,
            policies=self._policies,
            durable=self._durable,
            ledger=asked,
        )
        self._health = Health(self._app, settings, self._recorder, self.complain)

    def _make_site(self) -> Site:
        return Site(
            app=self._app,
            settings=self._settings,
            ledger=self._ledger,
            me=self._me,
            policies=self._policies,
            plans=Plans(),
            loop=self.loop,
            background=self._background,
            announce=self._announce,
            recorder=self._recorder,
            complain=self.complain,
            extensions=self._plugin.extensions,
        )

    def _make_quarantine_writer(self) -> None:
        """Make the parts that go by policies and by the block list."""
        fingerprints = Fingerprints(self._app, self.complain)
        self._checker = Checker(self._ledger, fingerprints, self._recorder, self.complain, self._site.plans)
        self.refresher = Refresher(
            site=self._site,
            plugin=self._plugin,
            health=self._health,
            checker=self._checker,
            holds=self._holds,
        )
        self._quarantine_writer = QuarantineWriter(
            site=self._site, fingerprints=fingerprints, refresher=self.refresher
        )
        self.unprocessable = Unprocessable(site=self._site, writer=self._quarantine_writer)

    def _make_resync(self) -> None:
        beat = self._settings.heartbeat_interval
        tell_again = TELL_AGAIN + (beat if self._writer.follows_master else 0.0)
        self._resync_window = ResyncWindow(self._settings.activation_interval, tell_again)
        self._deferred_cleanup = DeferredCleanup(self._ledger)
        self._books = Books(self._inflight.tags_in_use, lambda channel: self.rejoin.channel_closes(channel))
        self._resync = Resync(
            site=self._site,
            writer=self._writer,
            health=self._health,
            pause=beat,
            window=self._resync_window,
            deferred_cleanup=self._deferred_cleanup,
            inflight=self._inflight,
            books=self._books,
        )

    def _make_outcomes(self) -> None:
        self._crash_reports = crash_reports.open_crash_reports(self.complain)
        self.exits = Exits(self._crash_reports)
        self._outcomes = Outcomes(
            site=self._site,
            lease=self._lease,
            deferred_cleanup=self._deferred_cleanup,
            resync=self._resync,
            inflight=self._inflight,
            quarantine_writer=self._quarantine_writer,
            shutdown=self.shutdown,
            is_unblocked=self._is_unblocked,
        )
        self.leaving = Leaving(self._inflight, self._books, self.complain)
        self.rejoin = Rejoin(site=self._site, lease=self._lease, inflight=self._inflight, resync=self._resync)
        self.standstill = Standstill(self._site, self._pool, self._inflight, self.rejoin)
        self._owners = Owners(self._ledger)

    def _is_unblocked(self, request: Any) -> bool:
        policy = self._policies[request.type][0].at(request.consumed_from)
        return self._checker.refresh() and not self._checker.reason(
            request.message, request.type, policy, ask=False
        )

    def _make_cells(self, nursery: Nursery | str) -> None:
        host = Host(
            worker=self._me.first_worker,
            settings=self._settings,
            pool=self._pool,
            loop=self.loop,
            shutdown=self.shutdown,
            complain=self.complain,
            prepare=self._prepare_cell,
            exits=self.exits,
            lease=self._lease.fd,
        )
        self.cells = Cells(host, nursery)

    def _prepare_cell(self, request: Any) -> Prepare:
        sown = seed.Seed(
            worker=self._me.worker,
            ledger=(self._plugin.ledger_url, self._settings.namespace),
            overrides=self._plugin.policy_overrides,
            secret=self._recorder.secret,
            reports=self._crash_reports.path if self._crash_reports else "",
            task=request.type,
            alone=request.alone,
        )
        return partial(seed.prepare, sown)

    def _make_road(self) -> None:
        admission = Admission(
            site=self._site,
            handler=self.unprocessable.take,
            refuse=self.unprocessable.refuse,
            inflight=self._inflight,
            cells=self.cells,
            holds=self._holds,
            checker=self._checker,
            resync=self._resync,
            quarantine_writer=self._quarantine_writer,
            outcomes=self._outcomes,
            lease=self._lease,
            broadcasts=self.broadcasts,
        )
        self.road = Road(
            site=self._site,
            opening=Opening(self._site, admission, self._quarantine_writer),
            unprocessable=self.unprocessable,
            inflight=self._inflight,
            broadcasts=self.broadcasts,
            rejoin=self.rejoin,
            lease=self._lease,
        )

    def _make_heartbeat(self) -> None:
        directory = self._crash_reports.path if self._crash_reports is not None else ""
        self.pulse = WorkerPulse(self._site, self._pool, self.shutdown, directory)
        payload = WorkerFacts(
            site=self._site,
            pool=self._pool,
            cells=self.cells,
            shutdown=self.shutdown,
            holds=self._holds,
            rejoin=self.rejoin,
            deferred_cleanup=self._deferred_cleanup,
            pulse=self.pulse,
        )
        ledger = self._plugin.open_ledger()
        ask_once(ledger.client)  # else it would beat again after four time-outs
        self.heartbeat = Heartbeat(
            site=self._site,
            ledger=ledger,
            payload=payload,
            shutdown=self.shutdown,
            health=self._health,
            lease=self._lease,
            rejoin=self.rejoin,
            exits=self.exits,
            on_news=lambda: self.monitor.hurry(),
        )
        self.monitor = Monitor(
            app=self._app,
            ledger=self._ledger,
            settings=self._settings,
            identity=self.heartbeat.identity,
            flagged=self.loop.deferred(self._announce.candidate),
            took_over=self.refresher.policies,
            event=self.loop.deferred(self._announce.fleet),
        )
        self.helpers = gather(self._site.extensions.helpers, self.complain, self._site)

    def _configure_processes(self) -> None:
        """Make this process, its children and its broker connections record what they do."""
        settings = self._settings
        mine = Serving(
            self._recorder,
            self._ledger,
            self._lease,
            contained=self._pool.contained,
            observes=settings.observe_only,
        )
        serve(self._me.born_as, mine)
        self._renewal: Renewal | None = None
        self._connection: Any = None
        if not settings.observe_only:  # else Celery's own transport
            look = self.standstill.look
            self._renewal = Renewal(self._books, settings.heartbeat_interval, self.complain, look)
            me = self._me  # and not this worker: publishing connections of the app's may outlive it
            self._connection = self._app.amqp.Connection = guarded_connection(
                lambda: me.boot_id, self._owners.is_alive, self._books
            )

    # --- for the bootsteps ---------------------------------------------------------------------

    def request_needs(self) -> RequestNeeds:
        """Return the parts that the requests of this worker work with."""
        return RequestNeeds(
            **self._site.as_dict(),
            holds=self._holds,
            inflight=self._inflight,
            rejoin=self.rejoin,
            cells=self.cells,
            checker=self._checker,
            exits=self.exits,
            outcomes=self._outcomes,
            broadcasts=self.broadcasts,
            contained=self._pool.contained,
        )

    def dispatcher(self, consumer: Any) -> Dispatcher:
        """Return the dispatcher in place of the consumer's ``on_task_request``."""
        return Dispatcher(
            consumer=consumer,
            settings=self._settings,
            rejoin=self.rejoin,
            lease=self._lease,
            health=self._health,
            cells=self.cells,
            recorder=self._recorder,
        )

    def renew(self) -> None:
        """Renew what is held of the broker, from now on; at once, since there is a new connection."""
        if self._renewal is not None:
            self._renewal.begin()

    def child_begins(self, **_: Any) -> None:
        """Set up a process of the pool, in that process; a cell has its own way."""
        # The solo pool sends this signal too, perhaps of another worker in this process.
        if seed.is_cell or os.getpid() == self._me.pid:
            return
        if self._crash_reports is not None:
            crash_reports.begin_report(self._crash_reports.path)
        keep_child_alive(self._writer, self._ledger.keys, self._me.worker, self._settings, self._lease)

    # --- beside its messages --------------------------------------------------------------------

    def connected(self, consumer: Any) -> None:
        """Note that the worker is connected to its broker, perhaps anew."""
        self.broadcasts.say(consumer.app.amqp.queues.consume_from.values())
        self.loop.is_filled_by_delays = self._delays.say(consumer)
        self.loop.can_lend = can_lend(consumer)
        self._background.do(partial(self._health.note_broker, self._ledger), lambda: False)

    def begin_rounds(self) -> None:
        """Start what goes on in the background, once the pool has forked. Safe to call again."""
        if self._is_on_rounds:
            return
        self._is_on_rounds = True
        self._writer.open()  # now, and not when the event loop has something to note
        self._background.start()
        self._background.do(self._go_round)
        self._background.do(self.refresher.go_on)
        self._background.do(self._quarantine_writer.bring_spooled)
        if self._writer.follows_master:
            self._background.do(self._resync.follow_master)

    def _go_round(self) -> None:
        self.rejoin.go_through()
        self._owners.read()
        # Nothing is forgotten here while Redis is away: it may come back having forgotten more than that.
        if self._writer.open():
            self._resync.heard_from(self._writer.run_id)
            self._resync.refused(self._lease.refusals)
            self._resync.clean_up()
            self._resync.recheck()
        raise Retry(PAUSE)

    def farewell(self) -> None:
        """Leave the books clean: what still runs was interrupted, and no message is to blame.

        Once everything that can be has been acknowledged; nothing in a process that is not the main one.
        """
        if os.getpid() != self._me.pid:
            return
        self.shutdown.is_begun = True
        self.cells.end()
        self._background.finish(FAREWELL)
        self.loop.drain()
        self.shutdown.is_over = True
        try:
            # It may have been taken for dead a moment ago, and no other worker knows that these had ended.
            self._deferred_cleanup.take_back_flags(self._ledger.read.candidate_ids())
            self._deferred_cleanup.clean_up(everything=True)
            self._outcomes.take_back_all()
            if self._gives_everything_back():
                self._ledger.fleet.retire(self._me.worker)
                if self._me.rejoins:
                    self._ledger.fleet.retire(self._me.first_worker)
        except LedgerUnavailable as error:
            self.complain(error)
        if self._crash_reports is not None:
            self._crash_reports.remove()

    @property
    def is_at_work(self) -> bool:
        """Whether tasks run in this very process, or the fate of a message of theirs is being decided."""
        return self._pool.contained and bool(self._inflight.in_pool() or self._inflight.undecided)

    def release(self) -> None:
        """Let go of all that is this process's, after the farewell: it may go on without a worker."""
        self.monitor.stop()
        tell((each.stop for each in self.helpers), self.complain)
        if self._renewal is not None:
            self._renewal.end(FAREWELL)
        self.heartbeat.end(FAREWELL)
        self._background.end(FAREWELL)
        self.monitor.join(FAREWELL)
        if threading.current_thread() is not threading.main_thread():  # else the process ends as a rule
            tell((each.join for each in self.helpers), self.complain, FAREWELL)
        self._ledger.disconnect()
        for used in (self._books, self._writer, self.loop, self._lease):
            used.close()
        release(self._me.born_as)
        if not release_requests(self._app, self._me.node):
            self._plugin.complain_to(None)
        if self._connection is not None and vars(self._app.amqp).get("Connection") is self._connection:
            del self._app.amqp.Connection

    def _gives_everything_back(self) -> bool:
        """A worker that still holds messages says no farewell: others declare it dead, and put them back."""
        over = time.monotonic() + FAREWELL
        while not self._books.leave_for_good():
            if time.monotonic() > over:
                return False
            time.sleep(PAUSE)
        return True
