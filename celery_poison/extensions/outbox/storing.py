"""Stores what is published, within a bound of time; while the ledger is away it is sent as ever (TP1-1)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

from celery.utils.log import get_logger
from redis.exceptions import ResponseError

from celery_poison import signals
from celery_poison.basics.parts import Helper, Panel
from celery_poison.broker.capture import Outgoing, Sink, at_once
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.extension import Extension
from celery_poison.extensions.outbox import database
from celery_poison.extensions.outbox.lanes import Lanes
from celery_poison.extensions.outbox.packing import lane_of, pack
from celery_poison.extensions.outbox.send_failures import Cause, error_transactions, send_failed
from celery_poison.extensions.outbox.settings import OutboxSettings
from celery_poison.headers import OUTBOX
from celery_poison.ledger import Ledger
from celery_poison.model import Start

logger = get_logger("celery_poison")

#: Seconds in which no commit is announced to a ledger that is away: not every transaction waits for it.
UNTOLD = 30.0


class Outbox(Extension):
    """The outbox of one app. It imports what a worker needs when that begins: most apps only publish."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self._rows: database.DjangoRows | None = None
        self._away_until = self._untold_until = 0.0
        self._is_away = False

    def taking(self, task: str, asked: bool | None) -> Sink | None:
        return self.store if self.takes(task, asked) else None

    def tying(self, run: Any, task: Any) -> AbstractContextManager[None]:
        from celery_poison.extensions.outbox.tied import Tied

        if run.tied is None:
            run.tied = Tied(run.recorder, run.serving.ledger, task, run.ticket, Start.decode(run.entry))
        tied: Tied = run.tied
        return tied.publishing()

    def within_body(self, run: Any, task: Any) -> AbstractContextManager[None]:
        options = run.recorder.policy(task.name).section(OutboxSettings)
        return self.tying(run, task) if options.transactional_publish else nullcontext()

    def unknown_task(self, message: Any, identity: Any, queue: str, reason: str) -> None:
        from celery_poison.keep.stored_message import original

        if type(seq := message.headers.get(OUTBOX)) is not int:  # nor a bool: a publisher may write anything
            return
        kept = original(message)
        outgoing = Outgoing(
            task=identity.task,
            id=identity.id,
            mid=identity.mid,
            exchange="",
            routing_key=queue,
            declare="",
            body=kept.body,
            content_type=kept.content_type,
            content_encoding=kept.content_encoding,
            headers=kept.headers,
            properties=kept.properties,
        )
        self.refused(outgoing, queue, seq, reason)

    def helpers(self, site: Any) -> Iterable[Helper]:
        from celery_poison.extensions.outbox.relay import Relay

        def refused(error: Exception) -> None:
            if isinstance(error.__cause__, ResponseError):  # a ledger that is away, the heartbeat counts
                site.complain(error)

        return [Relay(self.host, refused)]

    def panel(self, ledger: Ledger) -> Iterable[Panel]:
        from celery_poison.extensions.outbox.desk import panels

        return panels(ledger, self.host.settings.of(OutboxSettings).outbox_database)

    @cached_property
    def lanes(self) -> Lanes:
        return Lanes(self.host.quick_ledger)

    def takes(self, task: str, asked: bool | None) -> bool:
        """Whether messages of this task are stored, given what ``apply_async(outbox=...)`` said."""
        if asked is not None or not self.host.guards(task):
            return bool(asked)
        own = getattr(self.host.app._tasks[task], "outbox", None)
        try:
            chosen = self.host.settings.sections.get(OutboxSettings)
            return bool((chosen and chosen.outbox) if own is None else own)
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
            return False
        try:
            self.lanes.add(str(lane_of(outgoing)), [pack(outgoing)])
        except LedgerUnavailable as error:
            settings = self.host.settings
            if not settings.fail_open:
                why = "the message was not stored in the outbox, and not sent (poison_fail_open=False)"
                raise LedgerUnavailable(f"{why}: {error}") from error
            if not self._is_away:
                story = (
                    "celery_poison: the outbox cannot store messages, which are sent directly meanwhile: %s"
                )
                logger.error(story, error)
            self._is_away = True
            self._away_until = time.monotonic() + settings.publish_timeout  # not every caller waits for it
            return False
        if self._is_away:
            self._is_away = False
            logger.warning("celery_poison: the outbox takes messages again")
        return True

    def _stored_in_transaction(self, outgoing: Outgoing) -> bool:
        name = self.host.settings.of(OutboxSettings).outbox_database
        if not name or "://" in name or at_once.get() or database.is_own_successor(outgoing):
            return False
        rows = self._rows = self._rows or database.DjangoRows(name)
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
            self.lanes.tell_rows()
        except LedgerUnavailable:
            self._untold_until = time.monotonic() + UNTOLD

    def refused(self, outgoing: Outgoing, queue: str, seq: int, detail: str) -> None:
        """Note that a worker received a message of a task that it does not know (row 9).

        Raises:
            LedgerUnavailable: Redis is away.
        """
        cause = Cause.UNKNOWN_TASK
        report = send_failed(outgoing, queue, cause, seq=seq, detail=detail, blocked=True)
        blocked = self.lanes.note_refusal(
            queue,
            outgoing.task,
            id=outgoing.id,
            mid=outgoing.mid,
            seq=seq,
            cause=cause.value,
            note=detail,
            errors=error_transactions(self.host, report),
        )
        if blocked:
            logger.error(
                "celery_poison: sending to queue %s is blocked for task %s, which a worker does not know",
                queue,
                outgoing.task,
            )
            signals.queue_blocked.send(sender=None, queue=queue, cause=cause.value)
