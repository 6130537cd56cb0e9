"""What a person sees of the outbox, and does about it (TP1-4, TP1-6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from celery_poison import signals
from celery_poison.basics.parts import Panel
from celery_poison.basics.text import count_of, some_of
from celery_poison.broker.capture import Outgoing
from celery_poison.errors import ConfigurationError, MessageNotFound
from celery_poison.extensions.outbox.database import waiting_rows
from celery_poison.extensions.outbox.lanes import FAILED, Lane, LaneRecord, Lanes
from celery_poison.extensions.outbox.packing import lane_of, unpack
from celery_poison.ledger import Ledger
from celery_poison.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxMessage:
    """One message in the outbox.

    Attributes:
        seq: its number.
        lane: where it waits; None: it could not be sent, and lies among the failed ones.
        message: None if it cannot be read.
    """

    seq: int
    lane: Lane | None
    message: Outgoing | None

    def as_dict(self) -> dict[str, Any]:
        """Return the object of `outbox list --json`; headers and properties are for `outbox show`."""
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

    def __init__(self, host: Plugin) -> None:
        self._host = host
        self._ledger = host.open_ledger()
        self._lanes = Lanes(self._ledger)

    def lanes(self) -> list[LaneRecord]:
        """Return how every destination stands in which something waits, or that is blocked."""
        return self._lanes.all()

    def messages(self, queue: str = "", task: str = "", *, failed: bool = False) -> Iterator[OutboxMessage]:
        """Yield the waiting messages, or the failed ones, in the order of each destination."""
        lanes: list[Lane | None] = [None]
        if not failed:
            lanes = [Lane(each.queue, each.task, each.tied) for each in self.lanes() if each.waiting]
        for lane in lanes:
            for seq, packed in self._lanes.messages(FAILED if lane is None else str(lane)):
                message = None
                with suppress(ValueError, TypeError):
                    message = unpack(packed)
                to = lane.queue if lane else message.queue if message else ""
                if (not queue or queue == to) and (not task or (message and message.task == task)):
                    yield OutboxMessage(seq=seq, lane=lane, message=message)

    def find(self, seq: int) -> OutboxMessage:
        """Return the message of this number.

        Raises:
            MessageNotFound: it is not in the outbox: it was sent, or dropped.
        """
        everything = (each for failed in (False, True) for each in self.messages(failed=failed))
        match = next((each for each in everything if each.seq == seq), None)
        if match is None:
            raise MessageNotFound(f"no message {seq} in the outbox: it was sent, or dropped")
        return match

    def retry(self, seq: int, *, actor: str, note: str = "") -> None:
        """Send a failed message again, at the end of its destination; or what waits with this one, at once.

        Raises:
            MessageNotFound: it is not in the outbox.
        """
        found = self.find(seq)
        if found.lane is not None:
            self.resend(found.lane.queue, found.lane.task)
        else:
            to = lane_of(found.message) if found.message else Lane("")
            self._lanes.drop(FAILED, seq, to=str(to), actor=actor, note=note)

    def resend(self, queue: str = "", task: str = "") -> int:
        """Try at once what waits and is not blocked; return the number of destinations."""
        return self._lanes.resend(queue, task)

    def drop(self, seq: int, *, actor: str, note: str = "") -> None:
        """Delete a message that was not sent. A relay that has it at this moment may send it all the same.

        Raises:
            MessageNotFound: it is not in the outbox.
        """
        lane = self.find(seq).lane
        self._lanes.drop(str(lane) if lane else FAILED, seq, actor=actor, note=note)

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
        is_new = self._lanes.block(queue, task, actor=actor, note=note)
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
        due = self._lanes.unblock(queue, task, actor=actor, note=note)
        signals.queue_unblocked.send(sender=None, queue=queue)
        for hook in () if task else self._host.extensions.blockade:
            hook(self._ledger, queue, False, actor, note)
        return due


def panels(ledger: Ledger, database: str | None) -> Iterator[Panel]:
    """Yield destinations, rows of the user's own database, and messages that could not be sent.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    outbox = Lanes(ledger)
    lanes, rows = outbox.all(), waiting_rows(database)
    blocked = sorted({lane.queue for lane in lanes if lane.blocked})
    waiting = count_of(sum(lane.waiting for lane in lanes), "message")
    troubled = some_of(sorted({lane.queue for lane in lanes if lane.cause or lane.blocked}))
    trouble = f"; trouble with {troubled}" if troubled else ""
    yield Panel(
        "outbox",
        lanes,
        as_json=[asdict(lane) for lane in lanes],
        line=f"{waiting} wait to be sent{trouble}{f'; {rows}' if rows else ''}" if lanes or rows else "",
        decisions=[f"sending to {some_of(blocked)} is blocked"] if blocked else [],
        typed=["poison outbox status"] if blocked else [],
    )
    yield Panel("outbox_database", rows, as_json=rows and rows._asdict())
    unsent = sum(1 for _ in outbox.messages(FAILED))
    yield Panel(
        "unsent",
        unsent,
        as_json=unsent,
        decisions=[f"{count_of(unsent, 'message')} could not be sent"] if unsent else [],
        typed=["poison outbox list --failed"] if unsent else [],
    )
