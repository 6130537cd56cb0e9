"""Everything celery_poison holds in one worker's main process."""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from itertools import count
from logging import ERROR, WARNING
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.utils.log import get_logger
from celery.worker.state import active_requests

from celery_poison.broker.putback import put_back_lost
from celery_poison.broker.renewal import Renewal
from celery_poison.broker.transport import guarded_connection
from celery_poison.errors import ConfigurationError, IllegalTransition, LedgerUnavailable, StaleDelivery
from celery_poison.ledger import connection, meta
from celery_poison.ledger.queries import Queries
from celery_poison.ledger.wire import Wire, command
from celery_poison.plugin import Plugin, plugin_of
from celery_poison.quarantine.owner import identity_of
from celery_poison.quarantine.parcel import parcel_fields
from celery_poison.records import Start
from celery_poison.task import FIRST
from celery_poison.worker import attempt
from celery_poison.worker.announce import Announcer
from celery_poison.worker.attempt import Recorder, Ticket
from celery_poison.worker.bridge import Bridge
from celery_poison.worker.clerk import Clerk
from celery_poison.worker.delivery import Delivery
from celery_poison.worker.settler import Settler
from celery_poison.worker.whereabouts import Whereabouts

logger = get_logger("celery_poison")

#: Seconds a shutdown waits for decisions that are not on record yet.
FAREWELL = 5.0


class Runtime:
    """One incarnation of a worker.

    Raises:
        ConfigurationError: a setting is wrong, Redis is too old or may evict keys at will, or the
            ledger belongs to another app.
        LedgerUnavailable: only with ``poison_fail_open=False``.
    """

    first_attempt = FIRST

    def __init__(self, app: Celery, hostname: str, pool: str, concurrency: int, *, contained: bool) -> None:
        self.app = app
        self.plugin: Plugin = plugin_of(app)
        self.settings = self.plugin.settings
        self.policies = self.plugin.policies
        self.boot_id = uuid4().hex[:16]
        self.worker = f"{hostname}/{self.boot_id}"
        self.pid = os.getpid()
        self.activation_ms = int(self.settings.activation_interval * 1000)
        self.ledger = self.plugin.open_ledger()
        self.epoch = 0
        self.stopping = False
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
        self._tokens = count(1)
        self.whereabouts = Whereabouts()
        self._wire = Wire(self.ledger.client)
        self._complained: set[str] = set()
        self._enrolled = False
        self.consumer: Any = None
        self.recorder = self._open_recorder()
        self.bridge = Bridge()
        self.clerk = Clerk(self.complain)
        self.settler = Settler(self.ledger)
        self.announce = Announcer(lambda: self.consumer)
        attempt.configure(self.recorder, contained=contained)
        app.amqp.Connection = guarded_connection(self.boot_id)
        channels = app.amqp.Connection.channels
        self.renewal = Renewal(channels, self.settings.heartbeat_interval, self.complain)
        self._check_ledger()

    def _open_recorder(self) -> Recorder:
        journalled = self.settings.journal == "attempts"
        maxlen = self.settings.journal_maxlen if journalled else None
        # One connection for all notes of this process: Redis must see them in the order they were made.
        return Recorder(self._wire, self.ledger.keys, self.worker, self.policies, maxlen)

    # --- the ledger's health -------------------------------------------------------------------

    def _check_ledger(self) -> None:
        for name in self.settings.inactive():
            logger.warning("celery_poison: %s is checked, but this version does not act on it yet", name)
        try:
            for warning in connection.check_server(self.ledger.client):
                logger.warning("celery_poison: %s", warning)
            self.ensure_enrolled()
        except LedgerUnavailable as error:
            if not self.settings.fail_open:
                raise
            self.ledger_is_up = False
            self.complain(error)

    def ensure_enrolled(self) -> None:
        """Check once that the ledger is ours.

        Raises:
            SchemaMismatch, LedgerUnavailable: see :func:`celery_poison.ledger.meta.enroll`.
        """
        if not self._enrolled:
            self.secret = meta.enroll(self.ledger.client, self.ledger.keys, **identity_of(self.app))
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

    def is_being_recovered_from(self) -> bool:
        """Whether a monitor is putting back this worker's messages at this moment."""
        return self.worker in Queries(self.ledger).open_incidents()

    def about(self) -> dict[str, str | int]:
        """Return what a heartbeat tells about this worker."""
        return {
            **self._about,
            "queues": ",".join(sorted(self.app.amqp.queues.consume_from)),
            "stopping": int(self.stopping),
            "unguarded": self.settler.missing,
            "ledger_errors": self.ledger_errors,
        }

    def may_start(self) -> bool:
        """Whether tasks may be started at this moment.

        Not while the ledger is away (``poison_fail_open=False``), and not while this worker, taken for
        dead, is still being recovered from: what it started now would be taken for dead too.
        """
        return not self.fenced and (self.ledger_is_up or self.settings.fail_open)

    # --- the life of a delivery ----------------------------------------------------------------

    def connected(self, consumer: Any) -> None:
        """A broker connection begins; deliveries of earlier ones are void."""
        self.epoch += 1
        self.consumer = consumer
        self.whereabouts.connection_lost(active_requests)
        self.settler.connection_lost()
        self.bridge.attach(consumer)
        self.renewal.start()
        self._put_back_lost(consumer)

    def _put_back_lost(self, consumer: Any) -> None:
        if self._about["pool"] != "prefork":
            return  # other pools run what had not begun all the same
        try:
            put_back_lost(consumer.connection, {request.message.delivery_tag for request in active_requests})
        except Exception as error:
            self.complain(error)

    def next_token(self) -> str:
        """Return the fencing token of a new start."""
        return f"{self.boot_id}.{next(self._tokens)}"

    def note(self, mid: str, start: Start) -> None:
        """Overwrite the entry of a delivery that this process is letting in, without waiting."""
        words = (b"HSET", self.ledger.keys.running.encode(), mid.encode(), start.encode())
        self._wire.send(command(*words))

    def acknowledged(self, request: Any, ticket: Ticket, *, final: bool) -> None:
        """The broker was told that a delivery is done: forget its start."""
        if request.epoch != self.epoch:
            return  # told on a lost connection: the copy to come is recognised by this start
        if request.poison is None:
            self.settler.add(ticket.mid, ticket.token, request.id)
        else:
            self.clerk.do(partial(self.ledger.acquit, ticket.mid, request.start(), final=final))

    def interrupted(self, mid: str, start: Start) -> None:
        """A start ended through nobody's fault and its message goes back."""
        self.clerk.do(partial(self._interrupt, mid, start))

    def _interrupt(self, mid: str, start: Start) -> None:
        try:
            self.ledger.interrupt(mid, start, cause="shutdown")
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
        fields = parcel_fields(message, start.task, self.secret, self.policies[start.task][0])
        try:
            new = self.ledger.quarantine(mid, start, cause=cause, reason=reason, fields=fields)
        except IllegalTransition:
            return  # somebody gave this message up: one more copy of it adds nothing
        if new:
            told = partial(self.announce.quarantined, start.id, start.task, cause, reason)
            self.bridge.call(told)

    # --- the end -------------------------------------------------------------------------------

    def farewell(self) -> None:
        """Leave the books clean: what still runs was interrupted by the shutdown, nobody is to blame."""
        self.clerk.finish(FAREWELL)
        self.bridge.drain()
        try:
            self.settler.settle(everything=True)
            self._take_back_starts()
            self.ledger.retire(self.worker)
        except LedgerUnavailable as error:
            self.complain(error)

    def _take_back_starts(self) -> None:
        for mid, start, _ in Queries(self.ledger).running():
            if start.worker == self.worker:
                self._interrupt(mid, start)
