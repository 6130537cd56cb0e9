"""Everything celery_poison holds in one worker's main process, put together."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

from celery_poison.broker.held import Holdings
from celery_poison.broker.renewal import Renewal
from celery_poison.broker.transport import guarded_connection
from celery_poison.errors import LedgerUnavailable
from celery_poison.guard import give_back_acks
from celery_poison.ledger.writer import Writer
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.sandbox.host import Cells, TimeLimits
from celery_poison.worker import child
from celery_poison.worker.announce import Announcer
from celery_poison.worker.arrival.blocklist import BlockList, Checker
from celery_poison.worker.arrival.fingerprints import Fingerprints
from celery_poison.worker.arrival.keeping import Keeper
from celery_poison.worker.arrival.marks import Marks
from celery_poison.worker.arrival.refreshing import Refresher
from celery_poison.worker.bridge import Bridge
from celery_poison.worker.clerk import Again, Clerk
from celery_poison.worker.complaints import Complaints
from celery_poison.worker.crash_reports import make_deathbed
from celery_poison.worker.durable import open_durable
from celery_poison.worker.exits import Exits
from celery_poison.worker.lease import Lease
from celery_poison.worker.outcome import Outcomes, Ownership
from celery_poison.worker.presence.about import About
from celery_poison.worker.presence.amnesia import TELL_AGAIN, Amnesia
from celery_poison.worker.presence.following import Following
from celery_poison.worker.presence.health import Health
from celery_poison.worker.presence.incarnation import Incarnation
from celery_poison.worker.presence.leftovers import Leftovers
from celery_poison.worker.presence.memory import Memory
from celery_poison.worker.presence.owners import Owners
from celery_poison.worker.presence.rebirth import Rebirth
from celery_poison.worker.presence.settler import Settler
from celery_poison.worker.presence.vitals import Vitals
from celery_poison.worker.presence.whereabouts import Whereabouts
from celery_poison.worker.recorder import open_recorder

#: Seconds a shutdown waits for decisions that are not on record yet.
FAREWELL = 5.0
#: Seconds between two settlings of what was acknowledged.
TIDY_PAUSE = 0.25


class Runtime:
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
        self._about = About(app, self.me, settings.release, pool, concurrency)
        self.complain = Complaints()
        self.bridge = Bridge()
        self.clerk = Clerk(self.complain)
        self.announce = Announcer(lambda: self.consumer)
        self.whereabouts = Whereabouts()
        self._open_ledger()
        self._prepare_keeping()
        self._prepare_endings()
        self._prepare_for_losses()
        self.deathbed = make_deathbed(self.complain)
        self.exits = Exits(self.deathbed)
        self.vitals = Vitals(self.complain)
        self.cells = Cells(self, limits, concurrency)
        child.configure(self.recorder, self.ledger, self.lease, contained=contained, observing=self.observes)
        self._connect_as_myself()
        self.health.check(self.ledger, self._durable, self.amnesia)

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
        self.marks = Marks(self.writer, self.ledger.keys)
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
            self.bridge,
            self.complain,
        )
        self.keeper = Keeper(
            self.ledger,
            self.policies,
            fingerprints,
            self.recorder,
            self.refresher,
            self.announce,
            self.bridge,
            self.settings.release,
        )

    def _prepare_endings(self) -> None:
        """What takes starts off the ledger, and remembers them for a Redis that has forgotten."""
        beat = self.settings.heartbeat_interval
        tell_again = TELL_AGAIN + (beat if self.writer.follows_master else 0.0)
        self.amnesia = Amnesia(self.settings.activation_interval, tell_again)
        self._settler = Settler(self.ledger)
        self.memory = Memory(
            self.ledger,
            self.me,
            beat,
            self.amnesia,
            self._settler,
            self.whereabouts,
            self.clerk,
            lambda: self.holdings.owes_acknowledgements,
        )
        self.following = Following(self.writer, self.memory, self.health, self.bridge, beat)
        self.outcomes = Outcomes(
            self.me,
            self.settings,
            self.ledger,
            Ownership(self.ledger, self.lease, self.recorder),
            self.clerk,
            self.bridge,
            self._settler,
            self.memory,
            self.whereabouts,
            self.keeper,
            self.announce,
            lambda: self.stopping,
        )

    def _prepare_for_losses(self) -> None:
        """What is done when a broker connection is lost, and when this worker was taken for dead."""
        self._leftovers = Leftovers(self.ledger, self.whereabouts, self.clerk, contained=self.contained)
        self._owners = Owners(self.ledger)
        self.holdings = Holdings(self.whereabouts.tags_in_use, self._channel_closes)
        self._renewal = Renewal(self.holdings, self.settings.heartbeat_interval, self.complain)
        self.rebirth = Rebirth(
            self.me,
            self._connect_as_myself,
            self.lease,
            self.ledger,
            self.whereabouts,
            self.bridge,
            self.complain,
            self.settings.activation_interval,
            observes=self.observes,
        )

    def _connect_as_myself(self) -> None:
        """Let every broker connection from now on carry this incarnation's boot id."""
        if self.observes:
            return  # Celery's own transport
        self.app.amqp.Connection = guarded_connection(self.me.boot_id, self._owners.is_alive, self.holdings)

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
        return self.bridge.consumer

    def may_start(self) -> bool:
        """Whether tasks may be started at this moment.

        Not while the ledger is away (``poison_fail_open=False``), and not while this worker, taken for
        dead, is still being recovered from: what it started now would be taken for dead too.
        """
        if self.observes:
            return True
        known_to_live = not self.rebirth.is_fenced and not self.lease.is_doubtful()
        return known_to_live and (self.health.is_up or self.settings.fail_open)

    def identity(self) -> tuple[str, str]:
        """Return the name under which this worker's monitor competes, and where it is subscribed.

        The name stays the same when the worker is reborn, as its connections do.
        """
        return self.me.first_worker, self.run_id

    def about(self) -> dict[str, str | int]:
        """Return what a heartbeat tells about this worker."""
        return self._about.now(
            stopping=self.stopping,
            reconnected=self._connections > 1,
            unguarded=self._settler.missing,
            ledger_errors=self.complain.count,
            vitals=self.vitals.tell(),
        )

    # --- its life ------------------------------------------------------------------------------

    def connected(self, consumer: Any) -> None:
        """A broker connection begins; deliveries of earlier ones are void."""
        self.disconnected()
        self._connections += 1
        self.rebirth.is_fenced = False
        self.exits.watch(consumer.pool)
        self.amnesia.broker_forgets = consumer.connection.transport.driver_type == "redis"
        if self._connections > 1:
            self.amnesia.reconnected()
        self._leftovers.drop()
        self.memory.connection_lost()
        self.memory.broker_is_away = False
        self.bridge.attach(consumer)
        if not self.observes:
            self._renewal.start()
            self._renewal.soon()

    def disconnected(self) -> None:
        """The broker connection is gone: what came by it and has not begun is void, and delivered again."""
        self.epoch += 1
        self._leftovers.refuse()

    def _channel_closes(self, channel: Any) -> None:
        consumer = getattr(self.consumer, "task_consumer", None)
        if consumer is not None and consumer.channel is channel:
            self.disconnected()

    def begin(self) -> None:
        """Start what runs beside the event loop, once the pool has forked. Safe to call again."""
        if not self._begun:
            self._begun = True
            self.writer.open()  # now, and not when the event loop has something to note
            self.clerk.start()
            self.clerk.do(self._tidy_for_ever)
            self.clerk.do(self.refresher.go_on)
            if self.writer.follows_master:
                self.clerk.do(self.following.go_on)

    def _tidy_for_ever(self) -> None:
        self.rebirth.go_through()
        self._owners.read()
        # Nothing is forgotten here while Redis is away: it may come back having forgotten more than that.
        if self.writer.open():
            self.following.heard_from(self.writer.run_id)
            self.memory.settle()
            self.memory.recheck()
        raise Again(TIDY_PAUSE)

    def farewell(self) -> None:
        """Leave the books clean: what still runs was interrupted by the shutdown, nobody is to blame.

        Whoever still holds messages says none: others declare it dead, and put them back.
        """
        self.cells.end()
        self.clerk.finish(FAREWELL)
        self.bridge.drain()
        self.ended = True
        try:
            self._settler.settle(everything=True)
            self.outcomes.take_back_all()
            if self._gives_everything_back():
                self.ledger.retire(self.worker)
                if self.me.births:
                    self.ledger.retire(self.me.first_worker)
        except LedgerUnavailable as error:
            self.complain(error)
        if self.deathbed is not None:
            self.deathbed.remove()

    def _gives_everything_back(self) -> bool:
        over = time.monotonic() + FAREWELL
        while not self.holdings.leave_for_good():
            if time.monotonic() > over:
                return False
            time.sleep(TIDY_PAUSE)
        return True
