"""Everything celery_poison holds in one worker's main process."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from logging import ERROR, WARNING
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.utils.log import get_logger
from celery.worker.state import active_requests

from celery_poison import causes
from celery_poison.broker.putback import put_back_lost
from celery_poison.broker.renewal import Renewal
from celery_poison.broker.transport import guarded_connection
from celery_poison.errors import ConfigurationError, IllegalTransition, LedgerUnavailable, StaleDelivery
from celery_poison.evidence import NO_EVIDENCE, Evidence
from celery_poison.ledger import Ledger, connection, meta, untold
from celery_poison.ledger.attempts import Known
from celery_poison.ledger.queries import Queries
from celery_poison.ledger.wire import Wire, command
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.quarantine.owner import identity_of
from celery_poison.quarantine.parcel import parcel_fields
from celery_poison.records import Start
from celery_poison.task import FIRST
from celery_poison.verdict import Phase
from celery_poison.worker import attempt, durable
from celery_poison.worker.amnesia import TELL_AGAIN, Amnesia
from celery_poison.worker.announce import Announcer
from celery_poison.worker.attempt import Ticket
from celery_poison.worker.blocklist import BlockList, Checker
from celery_poison.worker.bridge import Bridge, StartAfresh
from celery_poison.worker.clerk import Again, Clerk
from celery_poison.worker.deathbed import Deathbed
from celery_poison.worker.delivery import Delivery
from celery_poison.worker.exits import Exits
from celery_poison.worker.fingerprints import Fingerprints
from celery_poison.worker.lease import Lease, birth_of
from celery_poison.worker.memory import Memory
from celery_poison.worker.observed import observe_tasks
from celery_poison.worker.owners import Owners
from celery_poison.worker.recording import open_durable, open_recorder
from celery_poison.worker.settler import Acknowledged, Settler
from celery_poison.worker.traits import traits_of_message
from celery_poison.worker.trial.host import Cells, TimeLimits
from celery_poison.worker.whereabouts import Whereabouts

logger = get_logger("celery_poison")

#: Seconds a shutdown waits for decisions that are not on record yet.
FAREWELL = 5.0
#: Seconds between two settlings of what was acknowledged.
TIDY_PAUSE = 0.25


class Runtime:
    """One incarnation of a worker.

    Raises:
        ConfigurationError: a setting is wrong, Redis is too old, may evict keys at will or cannot
            promise what ``poison_durability`` asks for, or the ledger belongs to another app.
        LedgerUnavailable: only with ``poison_fail_open=False``.
    """

    first_attempt = FIRST

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
        self.settings = self.plugin.settings
        #: Nothing may become of a message but what Celery makes of it (``poison_observe_only``).
        self.observes = self.settings.observe_only
        if self.observes:
            observe_tasks(app)
        #: Task name -> (policy, whether it diverts); updated in place, since others hold it too.
        self.policies = self.plugin.policies
        self._life = uuid4().hex[:16]
        self._births = 0
        self._hostname = hostname
        self.boot_id = self._life
        self._policy_version = self.plugin.policy_overrides.version
        self.worker = f"{hostname}/{self.boot_id}"
        self.pid = os.getpid()
        #: Whether tasks share this process.
        self.contained = contained
        self.activation_ms = int(self.settings.activation_interval * 1000)
        self.ledger = self.plugin.open_ledger()
        self.epoch = 0
        self.stopping = False
        #: It said farewell, and must not beat any more.
        self.ended = False
        self.ledger_is_up = True
        self.fenced = False
        self.secret = b""
        self.ledger_errors = 0
        self._about: dict[str, str | int] = {
            "node": hostname,
            "pid": self.pid,
            "host": socket.gethostname(),
            "pool": pool,
            "concurrency": concurrency,
            "started_at": int(time.time() * 1000),
        }
        #: Starts that ended when their messages had new owners.
        self.stale = 0
        self._tokens = count(1)
        self.whereabouts = Whereabouts()
        # One connection for all notes of a process: Redis must see them in the order they were made.
        channel = self.ledger.keys.channel(self.worker)
        self.wire = Wire(self.ledger.client, channel, remind=attempt.still_running)
        self.lease = Lease(self.settings.activation_interval)
        follows = self.settings.heartbeat_interval if self.wire.follows_master else 0.0
        self.amnesia = Amnesia(self.settings.activation_interval, follows + TELL_AGAIN)
        self._complained: set[str] = set()
        self.blocks = BlockList(self.ledger, self.complain)
        self._fingerprints = Fingerprints(self.complain)
        self.checker = Checker(self, self._fingerprints)
        self._enrolled = False
        self._begun = False
        self._taken_for_dead = False
        #: Of the Redis at which this process is subscribed to its channel; empty while it is not.
        self.run_id = ""
        self.consumer: Any = None
        self._durable = open_durable(self.settings, self.ledger, self.wire)
        self.recorder = open_recorder(
            self.settings, self.ledger, self.wire, hostname, self.policies, self._durable
        )
        self.bridge = Bridge()
        self.clerk = Clerk(self.complain)
        self.settler = Settler(self.ledger)
        self.memory = Memory(self.ledger, hostname, self.amnesia, self.settler, self.whereabouts, self.clerk)
        self.announce = Announcer(lambda: self.consumer)
        self.deathbed = self._make_deathbed()
        self.exits = Exits(self.deathbed)
        self.cells = Cells(self, limits)
        attempt.configure(
            self.recorder, self.ledger, self.lease, contained=contained, observing=self.observes
        )
        self._owners = Owners(self.ledger)
        self._connect_as_myself()
        self.renewal = Renewal(
            lambda: app.amqp.Connection.channels, self.settings.heartbeat_interval, self.complain
        )
        self._check_ledger()

    def _make_deathbed(self) -> Deathbed | None:
        try:
            return Deathbed()
        except OSError as error:
            self.complain(ConfigurationError(f"no stack of a native crash will be known: {error}"))
            return None

    def _connect_as_myself(self) -> None:
        """Let every broker connection from now on carry this incarnation's boot id."""
        if self.observes:
            return  # Celery's own transport
        self.app.amqp.Connection = guarded_connection(self.boot_id, self._owners.is_alive)

    # --- the ledger's health -------------------------------------------------------------------

    def _check_ledger(self) -> None:
        for name in self.settings.inactive():
            logger.warning("celery_poison: %s is checked, but this version does not act on it yet", name)
        try:
            for warning in connection.check_server(self.ledger.client):
                logger.warning("celery_poison: %s", warning)
            if self._durable is not None:
                self._durable.decide()
            self.ensure_enrolled(self.ledger)
            self._meet_redis()
        except LedgerUnavailable as error:
            if not self.settings.fail_open:
                raise
            self.ledger_is_up = False
            self.complain(error)
            if self._durable is not None:
                logger.warning("celery_poison: poison_durability='sync': %s", durable.LATER)

    def _meet_redis(self) -> None:
        run_id, up = connection.who_answers(self.ledger.client)
        has_a_past = (
            Queries(self.ledger).journal_age() > up + 1
        )  # a new and empty one can have forgotten nothing
        self.amnesia.met(run_id, up if has_a_past else math.inf)

    def ensure_enrolled(self, ledger: Ledger) -> None:
        """Check once that the ledger is ours, by the caller's own connection.

        Raises:
            SchemaMismatch, LedgerUnavailable: see :func:`celery_poison.ledger.meta.enroll`.
        """
        if not self._enrolled:
            self.secret = meta.enroll(ledger.client, ledger.keys, **identity_of(self.app))
            self.recorder.secret = self.secret
            self._enrolled = True

    def complain(self, error: Exception) -> None:
        """Count an error of the plugin; log each kind of it once."""
        self.ledger_errors += 1
        kind = f"{type(error).__name__}: {str(error).split(':')[0]}"
        if kind not in self._complained:
            self._complained.add(kind)
            known = isinstance(error, (LedgerUnavailable, ConfigurationError))
            sentence = "celery_poison: %s; tasks go on (logged once, counted in status)"
            logger.log(WARNING if known else ERROR, sentence, error, exc_info=None if known else error)

    def taken_for_dead(self) -> None:
        """Be reborn: others have put back what this worker held, and may be running it.

        What waits here is dropped. What runs goes on, and is this worker's again unless somebody else has
        started it meanwhile.
        """
        logger.critical(
            "celery_poison: this worker was silent for longer than poison_activation_interval=%s s,"
            " or cut off, and was taken for dead; its messages run elsewhere",
            self.settings.activation_interval,
        )
        self.fenced = True
        self._births += 1
        self.boot_id = f"{self._life}r{self._births}"
        self.worker = f"{self._hostname}/{self.boot_id}"
        self._connect_as_myself()
        self.lease.reborn()
        self._taken_for_dead = not self.observes

    def _return_from_the_dead(self) -> None:
        """In the clerk's thread, since the heartbeat's may share no connection with it."""
        self._taken_for_dead = False
        for request in self.whereabouts.in_pool():
            try:
                self.ledger.reclaim(request.mid, request.start())
            except StaleDelivery:
                self.bridge.call(request.end_stale)
            except LedgerUnavailable as error:
                self.complain(error)
        self.bridge.call(partial(self._start_afresh, "it was taken for dead"))

    def _start_afresh(self, reason: str) -> None:
        """Leave the broker and come back (on the event loop)."""
        if self.consumer.hub is not None:
            raise StartAfresh(reason)
        if self.consumer.connection is not None:  # else it is about to come back already
            self.consumer.connection.break_off(StartAfresh(reason))

    def refresh_policies(self) -> None:
        """Put policies that somebody changed at run time into force here (EMS-9); never raises."""
        if not self.ledger_is_up:
            return  # the heartbeat asks for it; nobody else need wait for it too
        try:
            self.plugin.refresh_policies(self.ledger)
            version = self.plugin.policy_overrides.version
            if version != self._policy_version:
                self.policies.update(self.plugin.policies)
                self._policy_version = version
                logger.info("celery_poison: policies of version %d are in force", version)
        except Exception as error:
            self.complain(error)

    def refresh_blocks(self) -> None:
        """Put changes of the block list into force here (NEW-3); never raises."""
        if not self.ledger_is_up:
            return
        try:
            self.blocks.refresh()
        except Exception as error:
            self.complain(error)

    def _keep_policies_fresh(self) -> None:
        self.refresh_policies()
        self.refresh_blocks()
        self._tell_the_untold()
        raise Again(self.settings.heartbeat_interval)

    def _tell_the_untold(self) -> None:
        """Tell Flower what nobody was there to tell; never raises."""
        if not (self.ledger_is_up and self.announce.is_heard):
            return
        try:
            for news in untold.take(self.ledger):
                self.bridge.call(partial(self.announce.news, news))
        except Exception as error:
            self.complain(error)

    def about(self) -> dict[str, str | int]:
        """Return what a heartbeat tells about this worker."""
        return {
            **self._about,
            "queues": ",".join(sorted(self.app.amqp.queues.consume_from)),
            "stopping": int(self.stopping),
            "reconnected": int(self.epoch > 1),
            "release": self.settings.release,
            "unguarded": self.settler.missing,
            "ledger_errors": self.ledger_errors,
        }

    @property
    def has_trials(self) -> bool:
        """Whether suspects are tried alone."""
        return self.settings.has_trials

    def may_start(self) -> bool:
        """Whether tasks may be started at this moment.

        Not while the ledger is away (``poison_fail_open=False``), and not while this worker, taken for
        dead, is still being recovered from: what it started now would be taken for dead too.
        """
        if self.observes:
            return True
        known_to_live = not self.fenced and not self.lease.is_doubtful()
        return known_to_live and (self.ledger_is_up or self.settings.fail_open)

    def identity(self) -> tuple[str, str]:
        """Return the name under which this worker's monitor competes, and where it is subscribed.

        The name stays the same when the worker is reborn, as its connections do.
        """
        return f"{self._hostname}/{self._life}", self.run_id

    def begin(self) -> None:
        """Start what runs beside the event loop, once the pool has forked. Safe to call again."""
        if not self._begun:
            self._begun = True
            self.wire.open()  # now, and not when the event loop has something to note
            self.clerk.start()
            self.clerk.do(self._tidy_for_ever)
            self.clerk.do(self._keep_policies_fresh)
            if self.wire.follows_master:
                self.clerk.do(self._keep_following)

    # --- the life of a delivery ----------------------------------------------------------------

    def connected(self, consumer: Any) -> None:
        """A broker connection begins; deliveries of earlier ones are void."""
        self.epoch += 1
        self.fenced = False
        self.consumer = consumer
        self.exits.watch(consumer.pool)
        self.amnesia.broker_forgets = consumer.connection.transport.driver_type == "redis"
        if self.epoch > 1:
            self.amnesia.reconnected()
        self._drop_what_had_not_begun()
        self.memory.connection_lost()
        self.memory.broker_is_away = False
        self.bridge.attach(consumer)
        if not self.observes:
            self.renewal.start()
            self._put_back_lost(consumer)

    def _drop_what_had_not_begun(self) -> None:
        if self.contained:
            # Celery empties the queue of a prefork pool only. All are refused first: one that begins at this
            # moment may be refused for nothing, but none begins that was delivered again.
            attempt.refuse(self.whereabouts.tokens_in_pool())
        if void := self.whereabouts.connection_lost(active_requests):
            self.clerk.do(partial(self._take_back_claims, void))
        if self.contained:
            attempt.admit(self.whereabouts.tokens_in_pool())

    def _put_back_lost(self, consumer: Any) -> None:
        try:
            put_back_lost(consumer.connection, {request.message.delivery_tag for request in active_requests})
        except Exception as error:
            self.complain(error)

    def _take_back_claims(self, tokens: set[str]) -> None:
        """Their copies may come to another worker, and would wait there for as long as this one lives."""
        for mid, start, raw in Queries(self.ledger).running():
            if start.token in tokens and start.phase == Phase.CLAIMED:
                self.ledger.claim(mid, raw, None)

    def next_token(self) -> str:
        """Return the fencing token of a new start."""
        return f"{self.boot_id}.{next(self._tokens)}"

    def note(self, mid: str, start: Start) -> None:
        """Overwrite the entry of a delivery that this process is letting in, without waiting."""
        words = (b"HSET", self.ledger.keys.running.encode(), mid.encode(), start.encode())
        self.wire.send(command(*words))

    def unnote(self, mid: str) -> None:
        """Take that entry away again, in the same way."""
        self.wire.send(command(b"HDEL", self.ledger.keys.running.encode(), mid.encode()))

    def acknowledged(self, request: Any, ticket: Ticket, *, final: bool) -> None:
        """The broker was told that a delivery is done: forget its start."""
        if birth_of(ticket.token) < self._births:
            self.clerk.do(partial(self.ended_too_late, request))
            return
        # Told on a lost connection: the copy to come is recognised by this start.
        copy = request.epoch != self.epoch
        end = Acknowledged(0.0, ticket.mid, ticket.token, request.id, request.type)
        if copy:
            self.memory.keep([end])
        if request.poison is not None and not request.poison.is_ordinary:
            acquit = partial(self.ledger.acquit, ticket.mid, request.start(), final=final, copy=copy)
            over = time.monotonic() + 3 * self.settings.activation_interval
            self.clerk.do(partial(self._acquit, request.poison, acquit, over))
        elif not copy:
            self.settler.add(ticket.mid, ticket.token, request.id, request.type)

    def _acquit(self, delivery: Delivery, acquit: Callable[[], None], over: float) -> None:
        """What was overtaken must be judged first, or its death would flag a message that has ended."""
        if delivery.overtaken is not None and time.monotonic() < over:
            mid, raw = delivery.overtaken
            if Queries(self.ledger).entry(mid) == raw:
                raise Again(TIDY_PAUSE)
        acquit()

    def still_owns(self, mid: str, start: Start) -> bool:
        """Whether the message of a start that has ended is still this worker's (in the clerk's thread)."""
        if not self.lease.is_doubtful(start.token):
            return True
        try:
            self.ledger.reclaim(mid, start)
        except StaleDelivery:
            return False
        return True

    def ended_too_late(self, request: Any, *, lost: bool = False) -> None:
        """A start ended after its worker was taken for dead (in the clerk's thread).

        Args:
            lost: it is known to have lost its message, which may have ended elsewhere by now.
        """
        start = request.start()
        start = start._replace(worker=self.recorder.worker_of(start.token))
        try:
            self.ledger.survived(request.mid, start.token, request.id, start if lost else None)
        except StaleDelivery as error:
            self.stale += 1
            logger.error("celery_poison: %s counts for nothing: %s", request.humaninfo(), error)

    def _tidy_for_ever(self) -> None:
        if self._taken_for_dead:
            self._return_from_the_dead()
        self._owners.read()
        # Nothing is forgotten here while Redis is away: it may come back having forgotten more than that.
        if self.wire.open():
            self.heard_from(self.wire.run_id)
            self.memory.settle()
        raise Again(TIDY_PAUSE)

    def heard_from(self, run_id: str) -> None:
        """Note which Redis the ledger is; one that was restarted or replaced is told what it may not know."""
        self.memory.heard_from(run_id, self._new_redis)

    def _new_redis(self) -> None:
        self._enrolled = False
        self._follow_master()

    def _follow_master(self) -> None:
        """Leave a master that Sentinel has replaced; what is written there is lost."""
        left = self.wire.follow()
        if left is not None:
            self.bridge.call(partial(self._leave_broker, left))

    def _leave_broker(self, address: tuple[str, int]) -> None:
        """What the old master still gives to this worker, the new one gives to others (on the event loop)."""
        client = getattr(self.consumer.task_consumer.channel, "client", None)
        connection = getattr(client, "connection", None)
        if connection is not None and (connection.host, connection.port) == address:
            self._start_afresh("there is a new master")

    def _keep_following(self) -> None:
        self._follow_master()
        raise Again(self.settings.heartbeat_interval)

    def interrupted(self, mid: str, start: Start) -> None:
        """A start ended through nobody's fault and its message goes back."""
        self.clerk.do(partial(self._interrupt, mid, start))

    def _interrupt(self, mid: str, start: Start) -> None:
        try:
            known = {"release": self.settings.release}
            self.ledger.interrupt(mid, start, cause="shutdown", known=known)
        except StaleDelivery:
            return

    def never_started(self, delivery: Delivery, *, put_back: bool) -> None:
        """A delivery that was let in was revoked, expired or rejected before it went to the pool."""
        self.whereabouts.dropped(delivery.start.token)
        if put_back:
            self.interrupted(delivery.mid, delivery.start)
        else:
            self.clerk.do(partial(self.ledger.acquit, delivery.mid, delivery.start, final=True))

    def keep(self, message: Any, mid: str, start: Start, cause: str, reason: str) -> None:
        """Store a message in quarantine; it may be acknowledged as soon as this returns.

        Raises:
            StaleDelivery: it runs elsewhere.
            LedgerUnavailable: it must not be acknowledged.
        """
        policy = self.policies[start.task][0]
        # What died while it was being received may have died of the user's function: it is not asked again.
        function = None if cause == causes.RECEIVE else policy.fingerprint
        fields = parcel_fields(message, self._fingerprints.of(message, start.task, self.secret, function))
        convicted = cause not in causes.NO_CONVICTIONS
        block_after = (policy.block_fingerprint_after or 0) if convicted else None
        try:
            new = self.ledger.quarantine(
                mid,
                start,
                cause=cause,
                reason=reason,
                fields=fields,
                block_after=block_after,
                known=self.known(message, start.task),
            )
        except IllegalTransition:
            return  # somebody gave this message up: one more copy of it adds nothing
        if new:
            told = partial(self.announce.quarantined, start.id, start.task, cause, reason)
            self.bridge.call(told)
        if block_after:
            self.refresh_blocks()  # here at once, elsewhere within a heartbeat

    def known(self, message: Any, task: str, evidence: Evidence = NO_EVIDENCE) -> Known:
        """Return what the journal tells about a message of this worker beside its start."""
        asks_user = self.policies[task][0].fingerprint is not None
        traits = traits_of_message(message, task, self.secret, asks_user=asks_user)
        told = {"release": self.settings.release, "evidence": evidence.encode()}
        return {**traits._asdict(), **told, "memory_kb": str(evidence.rss_kb or "")}

    def would_quarantine(self, message: Any, mid: str, start: Start, cause: str, reason: str) -> None:
        """Note what would become of a message, with ``poison_observe_only``."""
        known = self.known(message, start.task)
        self.ledger.would_quarantine(mid, start, cause=cause, reason=reason, known=known)
        logger.warning("celery_poison: Task %s[%s] would be quarantined: %s", start.task, start.id, reason)

    # --- the end -------------------------------------------------------------------------------

    def farewell(self) -> None:
        """Leave the books clean: what still runs was interrupted by the shutdown, nobody is to blame."""
        self.cells.end()
        self.clerk.finish(FAREWELL)
        self.bridge.drain()
        self.ended = True
        try:
            self.settler.settle(everything=True)
            self._take_back_starts()
            self.ledger.retire(self.worker)
            if self._births:
                self.ledger.retire(self.identity()[0])
        except LedgerUnavailable as error:
            self.complain(error)
        if self.deathbed is not None:
            self.deathbed.remove()

    def _take_back_starts(self) -> None:
        for mid, start, _ in Queries(self.ledger).running():
            if start.worker == self.worker:
                self._interrupt(mid, start)
