"""What a person sees of the outbox, and does about it (TP1-4, TP1-6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_poison import signals
from celery_poison.errors import ConfigurationError, MessageNotFound
from celery_poison.ledger import pauses
from celery_poison.ledger.outbox import FAILED, Lane, LaneRecord
from celery_poison.ledger.pauses import Pause, Scope
from celery_poison.producer import database
from celery_poison.producer.message import Outgoing
from celery_poison.producer.outbox import Host

#: How the note of a pause begins that came with a blockade, and goes with it.
CONSUMING_TOO = "sending to it is blocked"


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

    def in_database(self) -> database.Waiting | None:
        """Return what waits in the user's own database, or None where there is none."""
        return database.waiting_rows(self._host.settings.outbox_database)

    def lanes(self) -> list[LaneRecord]:
        """Return how every destination stands in which something waits, or that is blocked."""
        return self._ledger.outbox_lanes()

    def messages(self, queue: str = "", task: str = "", *, failed: bool = False) -> Iterator[Waiting]:
        """Yield what waits, or what failed and does not wait any more, in the order of each destination."""
        for lane in [None] if failed else self._lanes():
            for seq, packed in self._ledger.outbox_messages(FAILED if lane is None else str(lane)):
                found = Waiting(seq=seq, lane=lane, message=_read(packed))
                named = found.message
                if (not queue or queue == _queue_of(found)) and (not task or (named and named.task == task)):
                    yield found

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
            self._ledger.outbox_drop(FAILED, seq, to=str(to), actor=actor, note=note)

    def resend(self, queue: str = "", task: str = "") -> int:
        """Try at once what waits and is not blocked; return the number of destinations."""
        return self._ledger.outbox_resend(queue, task)

    def drop(self, seq: int, *, actor: str, note: str = "") -> None:
        """Delete a message that was not sent. A relay that has it at this moment may send it all the same.

        Raises:
            MessageNotFound: it is not in the outbox.
        """
        lane = self.find(seq).lane
        self._ledger.outbox_drop(str(lane) if lane else FAILED, seq, actor=actor, note=note)

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
        is_new = self._ledger.outbox_block(queue, task, actor=actor, note=note)
        if is_new:
            signals.queue_blocked.send(sender=None, queue=queue, cause="")
        if consuming and self._pause_of(queue) is None:
            why = f"{CONSUMING_TOO}: {note}" if note else CONSUMING_TOO
            self._ledger.pause(Scope.QUEUE, queue, actor=actor, note=why, said=f"queue {queue}: {why}")
        return is_new

    def unblock(self, queue: str, task: str = "", *, actor: str, note: str = "") -> int:
        """Send again, at once, and end the pause that came with the blockade of a whole queue.

        Returns:
            the number of destinations that waited for it.

        Raises:
            MessageNotFound: it is not blocked.
        """
        due = self._ledger.outbox_unblock(queue, task, actor=actor, note=note)
        signals.queue_unblocked.send(sender=None, queue=queue)
        pause = None if task else self._pause_of(queue)
        if pause is not None and pause.note.startswith(CONSUMING_TOO):
            self._ledger.resume(Scope.QUEUE, queue, actor=actor, said=f"queue {queue}: it is unblocked")
        return due

    def _pause_of(self, queue: str) -> Pause | None:
        found = pauses.holding(self._ledger)
        return next((each for each in found if (each.scope, each.name) == (Scope.QUEUE, queue)), None)

    def _lanes(self) -> list[Lane]:
        return [Lane(each.queue, each.task, each.tied) for each in self.lanes() if each.waiting]


def _read(packed: bytes) -> Outgoing | None:
    try:
        return Outgoing.unpack(packed)
    except (ValueError, TypeError):
        return None


def _queue_of(found: Waiting) -> str:
    if found.lane is not None:
        return found.lane.queue
    return found.message.queue if found.message else ""
