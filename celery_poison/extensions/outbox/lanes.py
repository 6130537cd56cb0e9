"""Transitions of messages that wait to be sent, and what is read of them (TP1-1 to TP1-7).

A lane is a destination: the name of a queue. ``QUEUE\\tTASK`` holds the messages of one task that wait by
themselves, ``QUEUE\\t\\ttied`` those that were tied to the success of a task. Everything here raises
``LedgerUnavailable`` when Redis is away.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from celery_poison.basics.numbers import moment
from celery_poison.basics.text import decoded
from celery_poison.errors import ConfigurationError, MessageNotFound
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import ANSWER_TIMEOUT, clear_errors, connection_from
from celery_poison.ledger.scripts import Code
from celery_poison.model import Record, Start

#: Where a tied message lies that could not be sent.
FAILED = ""
#: Rows that are read at once.
_PAGE = 500
#: Milliseconds for which messages tied to the success of a start are kept.
TIED_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Lane:
    """A destination of the outbox, or a part of one that waits by itself.

    Attributes:
        queue: name of the queue; ``EXCHANGE/KEY`` where a message was published to an exchange of no queue.
        task: only messages of this task; empty: all others.
        tied: of messages that were tied to the success of a task.
    """

    queue: str
    task: str = ""
    tied: bool = False

    def __str__(self) -> str:
        return f"{self.queue}\t{self.task}\t{'tied' if self.tied else ''}".rstrip("\t")

    @classmethod
    def read(cls, name: str) -> Lane:
        queue, task, tied = [*name.split("\t"), "", ""][:3]
        return cls(queue, task, bool(tied))


class Taken(NamedTuple):
    """One message that a relay has taken.

    Attributes:
        note: 0: it was never sent; above: it may have been sent before, under this note; below: it certainly
            has been, and needs only be forgotten.
    """

    seq: int
    note: int
    packed: bytes


@dataclass(frozen=True, slots=True)
class LaneLease:
    """The part of one lane that a relay has taken.

    Attributes:
        fence: number of this lease; a later one voids it.
        tries: how often the first message was tried and failed, since it last waited.
        failed_seq: number of the message whose failure was reported, or 0.
    """

    lane: Lane
    fence: int
    tries: int
    failed_seq: int
    messages: Sequence[Taken]


class Copy(NamedTuple):
    """The copy put into the broker's Redis in the step that takes its message out of the outbox.

    Attributes:
        forget: mid of which nothing need be remembered, or the empty string.
        list: name of the list, or the empty string where the broker has the message already.
    """

    seq: int
    forget: str
    list: str = ""
    payload: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingFailure:
    """How a sending ended that failed; see ``outbox_failed.lua``."""

    verdict: str
    wait_ms: int
    seq: int = 0
    single: int = 0
    cause: str = ""
    scope: str = "queue"
    blocks: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecord(Record):
    """How one lane stands.

    Attributes:
        waiting: messages in it.
        cause: why its first message could not be sent last time; empty: it could.
        due_in: seconds until it is tried again; None: it is blocked.
        blocked: why, or None.
    """

    queue: str
    task: str
    tied: bool
    waiting: int
    tries: int
    cause: str
    due_in: float | None
    blocked: dict[str, Any] | None


class Lanes:
    """The ways of a message from its caller to the broker, in one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._keys = ledger.keys
        #: The connection on which :meth:`wait` waits.
        self._waits_on: Any = None

    def _call(self, name: str, *keys: Mapping[str, str], **words: Any) -> list[Any]:
        return self._ledger.scripts.call(f"{__package__}:{name}", *keys, **words)

    def add(self, lane: str, packed: Iterable[bytes]) -> int:
        """Store messages of one lane in their order; return the number of the last one."""
        return int(self._call("outbox_add", name_of_lane=lane, rest=packed)[1])

    def take(
        self, lease_ms: int, most: int, *, trouble: bool, notes: bool
    ) -> tuple[LaneLease | None, float | None]:
        """Take what is due for ``lease_ms``; return it, or None and the seconds until something is due.

        Args:
            most: messages at once.
            trouble: take of the lanes whose last sending failed, else of the others.
            notes: note each message first, so that a second copy of it is recognised.
        """
        code, *rest = self._call("outbox_take", lease_ms=lease_ms, most=most, trouble=trouble, notes=notes)
        if code is not Code.OK:
            return None, None if rest[0] == b"" else int(rest[0]) / 1000
        lane, fence, tries, failed_seq, *rows = rest
        threes = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
        taken = [Taken(int(seq), int(note), packed) for seq, note, packed in threes]
        return LaneLease(Lane.read(decoded(lane)), int(fence), int(tries), int(failed_seq), taken), None

    def note_sent(self, lease: LaneLease, copies: Iterable[Copy]) -> bool:
        """Note that the broker has these messages; False if another relay has the lane by now.

        Raises:
            ConfigurationError: the list of a queue, which this was to put them into, is none.
        """
        lane = str(lease.lane)
        code, *rest = self._call("outbox_sent", name_of_lane=lane, fence=lease.fence, rest=copies)
        if code is Code.HELD:
            raise ConfigurationError(f"the key {rest[0].decode('utf-8', 'replace')!r} of Redis is not a list")
        return code is Code.OK

    def note_failure(
        self, lease: LaneLease, failure: SendingFailure, errors: Iterable[tuple[str, bytes]] = ()
    ) -> bool | None:
        """Note that a sending failed; return whether that blocked something, None if the lease is void.

        Args:
            errors: lane and message of each error transaction; stored in the same step.
        """
        words = {**asdict(failure), "fence": lease.fence}
        code, *reply = self._call("outbox_failed", name_of_lane=str(lease.lane), rest=errors, **words)
        return bool(reply[0]) if code is Code.OK else None

    def note_refusal(
        self,
        queue: str,
        task: str,
        *,
        id: str,
        mid: str,
        seq: int,
        cause: str,
        note: str,
        errors: Iterable[tuple[str, bytes]] = (),
    ) -> bool:
        """Note that a message was sent to a worker that knows no such task; return whether that blocks it."""
        words: dict[str, Any] = {"queue": queue, "task": task, "id": id, "mid": mid, "number": seq}
        return bool(self._call("outbox_refused", rest=errors, **words, cause=cause, note=note)[1])

    def block(self, queue: str, task: str, *, actor: str, note: str) -> bool:
        """Send nothing more to a queue, or of one task to it; False if it was blocked already."""
        return self._call("outbox_block", queue=queue, task=task, actor=actor, note=note)[0] is Code.OK

    def unblock(self, queue: str, task: str, *, actor: str, note: str) -> int:
        """Send again, at once; return the number of lanes that waited for it.

        Raises:
            MessageNotFound: it is not blocked.
        """
        reply = self._call("outbox_resend", queue=queue, task=task, unblock=True, actor=actor, note=note)
        if reply[0] is Code.DONE:
            raise MessageNotFound(f"sending to queue {queue}{task and f' of task {task}'} is not blocked")
        return int(reply[1])

    def resend(self, queue: str = "", task: str = "") -> int:
        """Try at once what waits and is not blocked; return the number of lanes."""
        return int(self._call("outbox_resend", queue=queue, task=task, unblock=0, actor="", note="")[1])

    def drop(self, where: str, seq: int, *, to: str = "", actor: str, note: str) -> None:
        """Take a message out of the outbox; ``to`` is the lane at whose end it is put instead.

        Args:
            where: name of its lane, or ``FAILED``.

        Raises:
            MessageNotFound: it is not there any more.
        """
        key = self._keys.lane(where) if where else self._keys.of("outbox_failed")
        words: dict[str, Any] = {"name_of_lane": where, "number": seq, "to": to}
        self._call("outbox_drop", {"lane": key}, **words, actor=actor, note=note)

    def tie(self, mid: str, start: Start, messages: Iterable[tuple[str, bytes]]) -> None:
        """Keep what a task has published, given as (lane, packed message), until its success is on record.

        Raises:
            StaleDelivery: its message has a new owner: nothing of it may leave (EMS-11).
        """
        keys = {"tied": self._keys.tied(start.token)}
        self._call("tie", keys, rest=messages, mid=mid, start=start, lasts_ms=TIED_MS)

    # --- rows of the user's own database ---------------------------------------------------------

    def lease_rows(self, mover: str, lease_ms: int, gone: Iterable[str] = ()) -> list[str] | None:
        """Be the process that moves rows, for ``lease_ms`` (0: no more); None if another process is.

        Args:
            mover: names one process.
            gone: uids of rows that are deleted.

        Returns:
            uids that are marked as moved, where the lease is new.
        """
        code, *marked = self._call("outbox_lease_rows", mover=mover, lease_ms=lease_ms, rest=gone)
        return [decoded(uid) for uid in marked] if code is Code.OK else None

    def put_rows(self, mover: str, lease_ms: int, rows: Iterable[tuple[str, str, bytes]]) -> bool:
        """Store rows (uid, lane, message) in their order, each once; False if another process moves them."""
        return self._call("outbox_put_rows", mover=mover, lease_ms=lease_ms, rest=rows)[0] is Code.OK

    def tell_rows(self) -> None:
        """Say that rows were committed."""
        with clear_errors("waking the outbox"):
            pipe = self._ledger.client.pipeline()
            pipe.lpush(self._keys.of("outbox_rows"), "1")
            pipe.ltrim(self._keys.of("outbox_rows"), 0, 0)
            pipe.execute()

    def await_rows(self, seconds: float) -> None:
        """Return when rows were committed, at the latest after ``seconds``."""
        with clear_errors("waiting for the outbox"):
            self._ledger.client.blpop([self._keys.of("outbox_rows")], timeout=seconds)

    # --- reading ----------------------------------------------------------------------------------

    def all(self) -> list[LaneRecord]:
        """Return how every lane stands in which something waits, or that is blocked."""
        with clear_errors("reading the outbox"):
            pipe = self._ledger.client.pipeline(transaction=False)
            pipe.zrange(self._keys.outbox_due, 0, -1, withscores=True)
            pipe.hgetall(self._keys.of("outbox_lanes"))
            pipe.hgetall(self._keys.of("outbox_blocked"))
            pipe.time()
            due, states, blocked, (seconds, micros) = pipe.execute()
            for name, _ in due:
                pipe.zcard(self._keys.lane(decoded(name)))
            counts = pipe.execute()
        reasons = {decoded(name): _object(text) for name, text in blocked.items()}
        ends = {decoded(name): at / 1000 - seconds - micros / 1e6 for name, at in due}
        waiting = {decoded(name): count for (name, _), count in zip(due, counts, strict=True)}
        named = {name: _object(text) for name, text in states.items()}
        records = []
        for name in sorted({*ends, *reasons}):
            lane, state, due_in = Lane.read(name), named.get(name.encode(), {}), ends.get(name)
            why = reasons.get(lane.queue) or reasons.get(str(Lane(lane.queue, lane.task)))
            records.append(
                LaneRecord(
                    **asdict(lane),
                    waiting=waiting.get(name, 0),
                    tries=state["tries"] if isinstance(state.get("tries"), int) else 0,
                    cause=str(state.get("cause", "")),
                    due_in=None if why or due_in is None else max(0.0, due_in),
                    blocked=why,
                )
            )
        return records

    def messages(self, where: str) -> Iterator[tuple[int, bytes]]:
        """Yield number and message of a lane, or of ``FAILED``, in their order."""
        key, last = self._keys.lane(where) if where else self._keys.of("outbox_failed"), "-inf"
        while True:
            with clear_errors("reading the outbox"):
                rows: Any = self._ledger.client.zrange(
                    key, last, "+inf", byscore=True, offset=0, num=_PAGE, withscores=True
                )
            yield from ((moment(seq), packed) for packed, seq in rows)
            if len(rows) < _PAGE:
                return
            last = f"({int(rows[-1][1])}"

    def has_trouble(self) -> bool:
        """Whether anything waits in a lane that a relay has looked at."""
        with clear_errors("reading the outbox"):
            return bool(self._ledger.client.exists(self._keys.of("outbox_lanes")))

    def are_empty(self) -> bool:
        """Whether nothing waits in any lane."""
        with clear_errors("reading the outbox"):
            return not self._ledger.client.exists(self._keys.outbox_due, self._keys.of("outbox_lanes"))

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Return whether a message is stored, within ``seconds``, that no relay looks at yet.

        Args:
            seconds: less than Redis may take for an answer.
            stop: whoever sets it and then calls :meth:`hang_up` ends this.
        """
        pool: Any = self._ledger.client.connection_pool
        with clear_errors("waiting for the outbox"):
            connection = self._waits_on = connection_from(pool)
            try:
                if stop.is_set():
                    return False
                # A URL may ask for shorter answers than ours.
                longest = 0.8 * (connection.socket_timeout or ANSWER_TIMEOUT)
                connection.send_command("BLPOP", self._keys.outbox_wake, min(seconds, longest))
                return bool(connection.read_response())
            finally:
                self._waits_on = None
                pool.release(connection)

    def hang_up(self) -> None:
        """Break off :meth:`wait`; from any thread: who leaves is not to take what wakes up another one."""
        connection: Any = self._waits_on
        with suppress(AttributeError, OSError):  # it has ended at this very moment
            connection._sock.shutdown(socket.SHUT_RDWR)


def _object(text: bytes) -> dict[str, Any]:
    """Return the content of a field; nothing where another program has written it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
