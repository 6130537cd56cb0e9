"""Stores what is published, within a bound of time; while the ledger is away it is sent as ever (TP1-1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import redis
from celery import Celery
from celery.utils.log import get_logger
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_poison import signals
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.producer.capture import at_once, capture
from celery_poison.producer.causes import Cause, SendFailed
from celery_poison.producer.database import DjangoRows, is_own_successor
from celery_poison.producer.limits import Limits
from celery_poison.producer.message import Outgoing
from celery_poison.settings import Settings

logger = get_logger("celery_poison")

#: Seconds for which a ledger that is away is told of no commit: not every transaction waits for it.
UNTOLD = 30.0


class Host(Protocol):
    """What the outbox needs of the plugin of its app.

    Attributes:
        on_send_failed: called with what could not be sent; returns error transactions, which are stored in
            the same step (TP1-3).
    """

    app: Celery
    limits: Limits
    on_send_failed: Callable[[SendFailed], Sequence[Outgoing]]

    @property
    def settings(self) -> Settings: ...

    def guards(self, task_name: str) -> bool: ...

    def open_ledger(self) -> Ledger: ...


class Outbox:
    """The outbox of one app, as its callers see it.

    Attributes:
        sent_directly: messages that were not stored, since the ledger was away (``poison_fail_open``).
    """

    def __init__(self, plugin: Host) -> None:
        self._plugin = plugin
        self._ledger: Ledger | None = None
        self._rows: DjangoRows | None = None
        self._away_until = self._untold_until = 0.0
        self._is_away = False
        self.sent_directly = 0

    def install(self) -> None:
        """Take what this app publishes, from now on."""
        capture(
            self._plugin.app,
            lambda task, asked: self.store if self.takes(task, asked) else None,
            self._plugin.limits.admit,
        )

    def takes(self, task: str, asked: bool | None) -> bool:
        """Whether messages of this task are stored, given what ``apply_async(outbox=...)`` said."""
        if asked is not None or not self._plugin.guards(task):
            return bool(asked)
        own = getattr(self._plugin.app._tasks[task], "outbox", None)
        try:
            return bool(self._plugin.settings.outbox if own is None else own)
        except ConfigurationError:  # stops workers, not those who only publish
            return False

    def store(self, outgoing: Outgoing) -> bool:
        """Store a message; False: it is to be sent directly, since the ledger is away.

        Raises:
            LedgerUnavailable: with ``poison_fail_open=False``; nothing was sent.
            Exception: what the database raises in whose transaction it is stored.
        """
        if self._stored_in_transaction(outgoing):
            return True
        if time.monotonic() < self._away_until:
            self.sent_directly += 1
            return False
        try:
            self.ledger.outbox_add(str(outgoing.lane), [outgoing.pack()])
        except LedgerUnavailable as error:
            return self._not_stored(error)
        if self._is_away:
            self._is_away = False
            logger.warning("celery_poison: the outbox takes messages again")
        return True

    def _stored_in_transaction(self, outgoing: Outgoing) -> bool:
        database = self._plugin.settings.outbox_database
        if not database or "://" in database or at_once.get() or is_own_successor(outgoing):
            return False
        rows = self._rows = self._rows or DjangoRows(database)
        if not rows.is_in_transaction():
            return False
        rows.add(outgoing)
        rows.after_commit(self.tell_rows)
        return True

    def tell_rows(self) -> None:
        """Wake who moves rows of the user's database; without that it looks within a second."""
        if time.monotonic() < max(self._away_until, self._untold_until):
            return
        try:
            self.ledger.outbox_tell_rows()
        except LedgerUnavailable:
            self._untold_until = time.monotonic() + UNTOLD

    def refused(self, outgoing: Outgoing, queue: str, seq: int, detail: str) -> None:
        """Note that a worker received a message of a task that it does not know (row 9).

        Raises:
            LedgerUnavailable: Redis is away.
        """
        cause = Cause.UNKNOWN_TASK
        report = SendFailed(
            queue=queue,
            task=outgoing.task,
            cause=cause,
            uncertain=False,
            blocked=True,
            seq=seq,
            outgoing=outgoing,
            tied=False,
            detail=detail,
        )
        blocked = self.ledger.outbox_refused(
            queue,
            outgoing.task,
            id=outgoing.id,
            mid=outgoing.mid,
            seq=seq,
            cause=cause.value,
            note=detail,
            errors=error_transactions(self._plugin, report),
        )
        if blocked:
            logger.error(
                "celery_poison: sending to queue %s is blocked for task %s, which a worker does not know",
                queue,
                outgoing.task,
            )
            signals.queue_blocked.send(sender=None, queue=queue, cause=cause.value)

    def _not_stored(self, error: LedgerUnavailable) -> bool:
        settings = self._plugin.settings
        if not settings.fail_open:
            raise LedgerUnavailable(
                f"the message was not stored in the outbox, and not sent (poison_fail_open=False): {error}"
            ) from error
        if not self._is_away:
            logger.error(
                "celery_poison: the outbox cannot store messages, which are sent directly meanwhile: %s",
                error,
            )
        self._is_away = True
        self._away_until = time.monotonic() + settings.outbox_timeout  # not every caller waits for it
        self.sent_directly += 1
        return False

    @property
    def ledger(self) -> Ledger:
        """A ledger on which nobody waits longer than ``poison_outbox_timeout``."""
        if self._ledger is None:
            self._ledger = bounded_ledger(self._plugin.open_ledger, self._plugin.settings.outbox_timeout)
        return self._ledger


def error_transactions(host: Host, report: SendFailed) -> list[tuple[str, bytes]]:
    """Return lane and message of what is called for a message that was not sent (TP1-3)."""
    try:
        return [(str(each.lane), each.pack()) for each in host.on_send_failed(report)]
    except Exception:
        logger.exception("celery_poison: the error transaction of a message that was not sent failed")
        return []


def bounded_ledger(open_ledger: Callable[[], Ledger], seconds: float) -> Ledger:
    """Return a ledger whose every call ends within ``seconds``.

    It may wait three times: on a connection that turns out to be lost, for a new one, and for the answer.
    """
    ledger = open_ledger()
    pool: Any = ledger.client.connection_pool
    once = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    waits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), seconds / 3)
    pool.connection_kwargs.update(**waits, retry=once)
    return ledger
