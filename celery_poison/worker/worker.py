"""Builds what one worker's main process works with, and gives each part what it needs."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import Celery

from celery_poison import causes
from celery_poison.basics.calling import gather
from celery_poison.basics.forking import keep_from_forks
from celery_poison.broker.books import Books
from celery_poison.broker.renewal import Renewal
from celery_poison.broker.transport import guarded_connection
from celery_poison.cells.cell import Prepare
from celery_poison.cells.nursery import Nursery
from celery_poison.cells.pool import Cells
from celery_poison.cells.trial import Host, PoolFacts
from celery_poison.fleet.monitor import Monitor
from celery_poison.ledger.connection import ask_once
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import plugin_of
from celery_poison.upstream.acks import give_back_acks
from celery_poison.worker import child, crash_reports, seed
from celery_poison.worker.admission import Admission
from celery_poison.worker.announce import Announcer, Complaints
from celery_poison.worker.blocklist import Checker, Fingerprints
from celery_poison.worker.broadcasts import Broadcasts
from celery_poison.worker.delays import Delays
from celery_poison.worker.dispatcher import Dispatcher
from celery_poison.worker.durable import open_durable
from celery_poison.worker.health import Health, Refresher
from celery_poison.worker.heartbeat import Heartbeat, Owners, Shutdown, WorkerFacts
from celery_poison.worker.inflight import DeferredCleanup, InFlight
from celery_poison.worker.lease import Incarnation, Lease
from celery_poison.worker.leaving import Leaving
from celery_poison.worker.opening import Opening
from celery_poison.worker.outcome import Outcomes
from celery_poison.worker.plans import Plans
from celery_poison.worker.pool_processes import Exits
from celery_poison.worker.postponing import Postponing
from celery_poison.worker.pulse_thread import WorkerPulse
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.rejoin import Rejoin
from celery_poison.worker.resync import TELL_AGAIN, Resync, ResyncWindow
from celery_poison.worker.road import Road
from celery_poison.worker.sending import RequestNeeds
from celery_poison.worker.site import Serving, Site, serve
from celery_poison.worker.standstill import Standstill
from celery_poison.worker.threads import Background, EventLoop
from celery_poison.worker.unprocessable import Unprocessable


class GuardedWorker:
    """The parts of one worker; :class:`.life.Life` starts and ends them.

    Args:
        nursery: forks its cells; or why there is none.

    Raises:
        ConfigurationError: a setting is wrong.
    """

    def __init__(self, app: Celery, me: Incarnation, pool: PoolFacts, nursery: Nursery | str) -> None:
        self.app = app
        self.plugin = plugin_of(app)
        self.settings = self.plugin.settings
        if self.settings.observe_only:
            give_back_acks(app)
        self.pool = pool
        #: Updated in place, since others hold it too.
        self._policies = self.plugin.policies
        self.me = me
        self.inflight = InFlight()
        self.shutdown = Shutdown()
        self.complain = Complaints()
        self.loop = EventLoop()
        if pool.contained:  # an AMQP server gives back what it holds when the last copy is closed
            keep_from_forks(self.loop, lambda loop: loop.consumer.connection._connection.transport.sock)
        self.broadcasts = Broadcasts(app, self.loop)
        self.delays = Delays()
        self.background = Background(self.complain)
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

    def _open_ledger(self) -> None:
        settings, self.ledger = self.settings, self.plugin.open_ledger()
        # One connection for all notes of a process: Redis must see them in the order they were made.
        channel = self.ledger.keys.channel(self.me.worker)
        self.writer = Writer(
            self.ledger.client, channel, on_connect=partial(child.still_running, self.me.born_as)
        )
        self.lease = Lease(settings.activation_interval)
        self.durable = open_durable(settings, self.ledger, self.writer)
        asked = None if settings.observe_only else self.ledger
        self._recorder = Recorder(
            settings=settings,
            keys=self.ledger.keys,
            writer=self.writer,
            node=self.me.node,
            policies=self._policies,
            durable=self.durable,
            ledger=asked,
        )
        self.health = Health(self.app, settings, self._recorder, self.complain)

    def _make_site(self) -> Site:
        return Site(
            app=self.app,
            settings=self.settings,
            ledger=self.ledger,
            me=self.me,
            policies=self._policies,
            plans=Plans(),
            loop=self.loop,
            background=self.background,
            announce=self._announce,
            recorder=self._recorder,
            complain=self.complain,
            extensions=self.plugin.extensions,
        )

    def _make_quarantine_writer(self) -> None:
        """Make the parts that go by policies and by the block list."""
        fingerprints = Fingerprints(self.app, self.complain)
        plans, holds = self._site.plans, self._holds
        self._checker = Checker(self.ledger, fingerprints, self._recorder, self.complain, plans, holds)
        self.refresher = Refresher(
            site=self._site,
            plugin=self.plugin,
            health=self.health,
            checker=self._checker,
            holds=self._holds,
        )
        self.quarantine_writer = QuarantineWriter(
            site=self._site, fingerprints=fingerprints, refresher=self.refresher
        )
        self.unprocessable = Unprocessable(site=self._site, writer=self.quarantine_writer)

    def _make_resync(self) -> None:
        beat = self.settings.heartbeat_interval
        tell_again = TELL_AGAIN + (beat if self.writer.follows_master else 0.0)
        self.resync_window = ResyncWindow(self.settings.activation_interval, tell_again)
        self.deferred_cleanup = DeferredCleanup(self.ledger)
        self.books = Books(self.inflight.tags_in_use, longest_wait=self.settings.stuck_after / 6)
        self.resync = Resync(
            site=self._site,
            writer=self.writer,
            health=self.health,
            pause=beat,
            window=self.resync_window,
            deferred_cleanup=self.deferred_cleanup,
            inflight=self.inflight,
            books=self.books,
        )

    def _make_outcomes(self) -> None:
        self.crash_reports = crash_reports.open_crash_reports(self.complain)
        self.exits = Exits(self.crash_reports)
        self.outcomes = Outcomes(
            site=self._site,
            lease=self.lease,
            deferred_cleanup=self.deferred_cleanup,
            resync=self.resync,
            inflight=self.inflight,
            quarantine_writer=self.quarantine_writer,
            shutdown=self.shutdown,
            is_unblocked=self._is_unblocked,
        )
        self.leaving = Leaving(self.inflight, self.books, self.complain)
        self.rejoin = Rejoin(site=self._site, lease=self.lease, inflight=self.inflight, resync=self.resync)
        self.books.before_return = self.rejoin.channel_closes
        self.standstill = Standstill(self._site, self.pool, self.inflight, self.rejoin)
        self.owners = Owners(self.ledger)

    def _is_unblocked(self, request: Any, cause: str) -> bool:
        if cause == causes.HELD:
            return self._checker.catch(request.message, request.type, as_of_now=True) is None
        policy = self._policies[request.type][0].at(request.consumed_from)
        return self._checker.refresh() and not self._checker.reason(
            request.message, request.type, policy, ask=False
        )

    def _make_cells(self, nursery: Nursery | str) -> None:
        host = Host(
            worker=self.me.first_worker,
            settings=self.settings,
            pool=self.pool,
            loop=self.loop,
            shutdown=self.shutdown,
            complain=self.complain,
            prepare=self._prepare_cell,
            exits=self.exits,
            lease=self.lease.fd,
        )
        self.cells = Cells(host, nursery)

    def _prepare_cell(self, request: Any) -> Prepare:
        sown = seed.Seed(
            worker=self.me.worker,
            ledger=(self.plugin.ledger_url, self.settings.namespace),
            overrides=self.plugin.policy_overrides,
            secret=self._recorder.secret,
            reports=self.crash_reports.path if self.crash_reports else "",
            task=request.type,
            alone=request.alone,
        )
        return partial(seed.prepare, sown)

    def _make_road(self) -> None:
        admission = Admission(
            site=self._site,
            handler=self.unprocessable.take,
            refuse=self.unprocessable.refuse,
            inflight=self.inflight,
            cells=self.cells,
            holds=self._holds,
            checker=self._checker,
            resync=self.resync,
            quarantine_writer=self.quarantine_writer,
            outcomes=self.outcomes,
            lease=self.lease,
            broadcasts=self.broadcasts,
        )
        self.unprocessable.postpone = Postponing(self._site, self.broadcasts, admission.judge_soon)
        self.road = Road(
            site=self._site,
            opening=Opening(self._site, admission, self.quarantine_writer),
            unprocessable=self.unprocessable,
            inflight=self.inflight,
            broadcasts=self.broadcasts,
            rejoin=self.rejoin,
            lease=self.lease,
            shutdown=self.shutdown,
        )

    def _make_heartbeat(self) -> None:
        directory = self.crash_reports.path if self.crash_reports is not None else ""
        self.pulse = WorkerPulse(self._site, self.pool, self.shutdown, directory)
        payload = WorkerFacts(
            site=self._site,
            pool=self.pool,
            cells=self.cells,
            shutdown=self.shutdown,
            holds=self._holds,
            rejoin=self.rejoin,
            deferred_cleanup=self.deferred_cleanup,
            pulse=self.pulse,
        )
        ledger = self.plugin.open_ledger()
        ask_once(ledger.client)  # else it would beat again after four time-outs
        self.heartbeat = Heartbeat(
            site=self._site,
            ledger=ledger,
            payload=payload,
            shutdown=self.shutdown,
            health=self.health,
            lease=self.lease,
            rejoin=self.rejoin,
            exits=self.exits,
        )
        self.monitor = Monitor(
            app=self.app,
            ledger=self.ledger,
            settings=self.settings,
            identity=self.heartbeat.identity,
            flagged=self.loop.deferred(self._announce.candidate),
            took_over=self.refresher.policies,
            event=self.loop.deferred(self._announce.fleet),
        )
        self.heartbeat.on_news = self.monitor.hurry
        self.helpers = gather(self._site.extensions.helpers, self.complain, self._site)

    def _configure_processes(self) -> None:
        """Make this process, its children and its broker connections record what they do."""
        settings = self.settings
        mine = Serving(
            self._recorder,
            self.ledger,
            self.lease,
            contained=self.pool.contained,
            observes=settings.observe_only,
        )
        serve(self.me.born_as, mine)
        self.renewal: Renewal | None = None
        self.connection: Any = None
        if not settings.observe_only:  # else Celery's own transport
            look = self.standstill.look
            self.renewal = Renewal(self.books, settings.heartbeat_interval, self.complain, look)
            me = self.me  # and not this worker: publishing connections of the app's may outlive it
            self.connection = self.app.amqp.Connection = guarded_connection(
                lambda: me.boot_id, self.owners.is_alive, self.books
            )

    # --- for the bootsteps ---------------------------------------------------------------------

    def request_needs(self) -> RequestNeeds:
        """Return the parts that the requests of this worker work with."""
        return RequestNeeds(
            **self._site.as_dict(),
            holds=self._holds,
            inflight=self.inflight,
            rejoin=self.rejoin,
            cells=self.cells,
            checker=self._checker,
            exits=self.exits,
            outcomes=self.outcomes,
            deferred_cleanup=self.deferred_cleanup,
            broadcasts=self.broadcasts,
            contained=self.pool.contained,
        )

    def dispatcher(self, consumer: Any) -> Dispatcher:
        """Return the dispatcher in place of the consumer's ``on_task_request``."""
        return Dispatcher(
            consumer=consumer,
            settings=self.settings,
            rejoin=self.rejoin,
            lease=self.lease,
            health=self.health,
            cells=self.cells,
            recorder=self._recorder,
        )
