"""Stores what is published, within a bound of time; while the ledger is away it is sent as ever (TP1-1).

Also what a person sees of what is stored, and does about it (TP1-4, TP1-6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import redis
from celery import Celery
from celery.utils.log import get_logger
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_poison import signals
from celery_poison.basics.calling import gather
from celery_poison.errors import ConfigurationError, LedgerUnavailable, MessageNotFound
from celery_poison.extension import Extensions
from celery_poison.ledger import Ledger
from celery_poison.ledger.outbox import FAILED, Lane, LaneRecord
from celery_poison.producer import database
from celery_poison.producer.capture import Outgoing, at_once, capture, reported
from celery_poison.producer.causes import Cause
from celery_poison.reports import Kind, Report
from celery_poison.settings import Settings

logger = get_logger("celery_poison")

#: Seconds for which a ledger that is away is told of no commit: not every transaction waits for it.
UNTOLD = 30.0


class Host(Protocol):
    """The plugin of an app, as its outbox knows it."""

    app: Celery
    complain: Callable[[Exception], object]

    @property
    def settings(self) -> Settings: ...

    @property
    def extensions(self) -> Extensions: ...

    def guards(self, task_name: str) -> bool: ...

    def open_ledger(self) -> Ledger: ...


class Outbox:
    """The outbox of one app, as its callers see it."""

    def __init__(self, plugin: Host) -> None:
        self._plugin = plugin
        self._ledger: Ledger | None = None
        self._rows: database.DjangoRows | None = None
        self._away_until = self._untold_until = 0.0
        self._is_away = False

    def install(self) -> None:
        """Take what this app publishes, from now on."""
        capture(
            self._plugin.app,
            lambda task, asked: self.store if self.takes(task, asked) else None,
            self._admit,
        )

    def _admit(self, producer: Any, message: Any, options: Mapping[str, Any]) -> None:
        for hook in self._plugin.extensions.publishing:
            hook(producer, message, options)

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
            return False
        try:
            self.ledger.outbox.add(str(outgoing.lane), [outgoing.pack()])
        except LedgerUnavailable as error:
            settings = self._plugin.settings
            if not settings.fail_open:
                why = "the message was not stored in the outbox, and not sent (poison_fail_open=False)"
                raise LedgerUnavailable(f"{why}: {error}") from error
            if not self._is_away:
                story = (
                    "celery_poison: the outbox cannot store messages, which are sent directly meanwhile: %s"
                )
                logger.error(story, error)
            self._is_away = True
            self._away_until = time.monotonic() + settings.outbox_timeout  # not every caller waits for it
            return False
        if self._is_away:
            self._is_away = False
            logger.warning("celery_poison: the outbox takes messages again")
        return True

    def _stored_in_transaction(self, outgoing: Outgoing) -> bool:
        name = self._plugin.settings.outbox_database
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
            self.ledger.outbox.tell_rows()
        except LedgerUnavailable:
            self._untold_until = time.monotonic() + UNTOLD

    def refused(self, outgoing: Outgoing, queue: str, seq: int, detail: str) -> None:
        """Note that a worker received a message of a task that it does not know (row 9).

        Raises:
            LedgerUnavailable: Redis is away.
        """
        cause = Cause.UNKNOWN_TASK
        report = send_failed(outgoing, queue, cause, seq=seq, detail=detail, blocked=True)
        blocked = self.ledger.outbox.refused(
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

    @property
    def ledger(self) -> Ledger:
        """A ledger on which nobody waits longer than ``poison_outbox_timeout``."""
        if self._ledger is None:
            self._ledger = bounded_ledger(self._plugin.open_ledger, self._plugin.settings.outbox_timeout)
        return self._ledger


def send_failed(
    outgoing: Outgoing,
    queue: str,
    cause: Cause,
    *,
    seq: int,
    detail: str,
    blocked: bool,
    uncertain: bool = False,
) -> Report:
    """Return what is told of a message that could not be sent; of a batch, of the first (TP1-3, table 2-4).

    Args:
        detail: what the broker said.
        blocked: the queue, or this task of it, is blocked by this failure.
        uncertain: it may have arrived all the same (rows 3 and 4).
    """
    kind, unsent = Kind.SEND_FAILED.value, reported(outgoing)
    return Report(
        kind=kind,
        id=f"{kind}:{unsent.mid}:{seq}",
        queue=queue,
        task=outgoing.task,
        cause=cause.value,
        reason=detail,
        queue_blocked=blocked,
        outbox_seq=seq,
        uncertain=uncertain,
        unsent=[unsent],
    )


def error_transactions(host: Host, report: Report) -> list[tuple[str, bytes]]:
    """Return lane and message of what is called for a message that was not sent (TP1-3)."""
    return [
        (str(each.lane), each.pack()) for each in gather(host.extensions.send_failed, host.complain, report)
    ]


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


# --- what a person sees of it, and does about it --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One message in the outbox.

    Attributes:
        seq: its number.
        lane: where it waits; None: it could not be sent, and lies among the failed ones.
        message: None if nobody can read it.
    """

    seq: int
    lane: Lane | None
    message: Outgoing | None

    def as_dict(self) -> dict[str, Any]:
        """Return what `outbox list --json` prints of it; headers and properties are for `outbox show`."""
        shown = self.details()
        return {
            name: value for name, value in shown.items() if name not in ("headers", "properties", "event")
        }

    def details(self) -> dict[str, Any]:
        told = self.message.as_dict() if self.message else {}
        told.pop("body", None)
        where = {"lane": str(self.lane) if self.lane else None, "failed": self.lane is None}
        return {"seq": self.seq, **where, **told}


class OutboxDesk:
    """The outbox of one app. Every method raises ``LedgerUnavailable`` when Redis is away."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ledger = host.open_ledger()

    def lanes(self) -> list[LaneRecord]:
        """Return how every destination stands in which something waits, or that is blocked."""
        return self._ledger.outbox.lanes()

    def messages(self, queue: str = "", task: str = "", *, failed: bool = False) -> Iterator[Waiting]:
        """Yield what waits, or what failed and does not wait any more, in the order of each destination."""
        lanes: list[Lane | None] = [None]
        if not failed:
            lanes = [Lane(each.queue, each.task, each.tied) for each in self.lanes() if each.waiting]
        for lane in lanes:
            for seq, packed in self._ledger.outbox.messages(FAILED if lane is None else str(lane)):
                message = None
                with suppress(ValueError, TypeError):
                    message = Outgoing.unpack(packed)
                to = lane.queue if lane else message.queue if message else ""
                if (not queue or queue == to) and (not task or (message and message.task == task)):
                    yield Waiting(seq=seq, lane=lane, message=message)

    def find(self, seq: int) -> Waiting:
        """Return the message of this number.

        Raises:
            MessageNotFound: it is not in the outbox: it was sent, or dropped.
        """
        everything = (each for failed in (False, True) for each in self.messages(failed=failed))
        found = next((each for each in everything if each.seq == seq), None)
        if found is None:
            raise MessageNotFound(f"no message {seq} in the outbox: it was sent, or dropped")
        return found

    def retry(self, seq: int, *, actor: str, note: str = "") -> None:
        """Send a failed message again, at the end of its destination; or what waits with this one, at once.

        Raises:
            MessageNotFound: it is not in the outbox.
        """
        found = self.find(seq)
        if found.lane is not None:
            self.resend(found.lane.queue, found.lane.task)
        else:
            to = found.message.lane if found.message else Lane("")
            self._ledger.outbox.drop(FAILED, seq, to=str(to), actor=actor, note=note)

    def resend(self, queue: str = "", task: str = "") -> int:
        """Try at once what waits and is not blocked; return the number of destinations."""
        return self._ledger.outbox.resend(queue, task)

    def drop(self, seq: int, *, actor: str, note: str = "") -> None:
        """Delete a message that was not sent. A relay that has it at this moment may send it all the same.

        Raises:
            MessageNotFound: it is not in the outbox.
        """
        lane = self.find(seq).lane
        self._ledger.outbox.drop(str(lane) if lane else FAILED, seq, actor=actor, note=note)

    def block(
        self, queue: str, task: str = "", *, consuming: bool = False, actor: str, note: str = ""
    ) -> bool:
        """Send nothing to a queue any more, or nothing of one task to it; False if that was so already.

        Args:
            consuming: pause the queue, too, until it is unblocked. One that it has stays.

        Raises:
            ConfigurationError: ``consuming`` with ``poison_observe_only``: workers pause nothing.
        """
        if consuming and self._host.settings.observe_only:
            raise ConfigurationError("poison_observe_only is set: workers pause nothing")
        is_new = self._ledger.outbox.block(queue, task, actor=actor, note=note)
        if is_new:
            signals.queue_blocked.send(sender=None, queue=queue, cause="")
        for hook in self._host.extensions.blockade if consuming else ():
            hook(self._ledger, queue, True, actor, note)
        return is_new

    def unblock(self, queue: str, task: str = "", *, actor: str, note: str = "") -> int:
        """Send again, at once, and end the pause that came with the blockade of a whole queue.

        Returns:
            the number of destinations that waited for it.

        Raises:
            MessageNotFound: it is not blocked.
        """
        due = self._ledger.outbox.unblock(queue, task, actor=actor, note=note)
        signals.queue_unblocked.send(sender=None, queue=queue)
        for hook in () if task else self._host.extensions.blockade:
            hook(self._ledger, queue, False, actor, note)
        return due
