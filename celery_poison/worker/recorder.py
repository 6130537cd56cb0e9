"""Writes the starts and ends of one worker's tasks: in the process that runs them, without waiting."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.headers import SENT, known_as
from celery_poison.keep.arguments import Arguments, arguments_of, hash_of, original_of
from celery_poison.ledger import Ledger
from celery_poison.ledger.journal import FIELDS, SCHEMA_VERSION
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.scripts import script
from celery_poison.ledger.writer import Writer, bulk, command
from celery_poison.model import ALONE, FIRST, Attempt, Ended, Start
from celery_poison.policy import Policy
from celery_poison.rules.reports import ReportedMessage
from celery_poison.settings import Settings
from celery_poison.upstream.requests import BodyNotReached
from celery_poison.worker.durable import Durable
from celery_poison.worker.high_water import high_water

#: Bytes up to which a body is read for this: it costs more than the rest of a task's bookkeeping.
READABLE = 64 * 1024
#: The end of the year 9999.
_LATEST_MS = 253_402_300_800_000
#: Arguments of either kind that a shape tells of, and characters of it.
_ARGUMENTS, _LENGTH = 20, 200

_KINDS = {
    int: "int",
    str: "str",
    float: "float",
    bool: "bool",
    type(None): "none",
    list: "list",
    dict: "dict",
}


class Given(NamedTuple):
    """The input of a run in a pool process; ``mark_kb`` is for :meth:`HighWater.peaks_kb`."""

    body: Any
    content_type: Any
    request: Mapping[str, Any]
    mark_kb: int | None = None


class Traits(NamedTuple):
    """Both are empty where they are not known."""

    fingerprint: str = ""
    shape: str = ""


UNKNOWN = Traits()


def traits_of(given: Given, task: str, secret: bytes, *, asks_user: bool) -> Traits:
    """Return the traits by which messages count as equal; never raise.

    Args:
        secret: the ledger's; empty while it is not known.
        asks_user: its task has a fingerprint function of its own, which is not run for this.
    """
    body = given.body
    # What is compressed was opened before it came here, and its fingerprint is that of the original.
    if not isinstance(body, (str, bytes)) or len(body) > READABLE or given.request.get("compression"):
        return UNKNOWN
    try:
        arguments = arguments_of(body) if given.content_type == "application/json" else None
        fingerprint = hash_of(secret, task, body, arguments) if secret and not asks_user else ""
        return Traits(fingerprint, shape_of(arguments) if arguments else "")
    except Exception:  # no message, whatever is in it, may end in a failure that is ours
        return UNKNOWN


def _measured(given: Given) -> tuple[int, int | str, int | str]:
    """Return the peak of this process; when the message was sent, and the peak of its run, if known."""
    sent: Any = given.request.get(SENT)
    peak, needed = high_water.peaks_kb(given.mark_kb)
    # Any publisher may write the header.
    known = type(sent) is int and 0 < sent < _LATEST_MS
    return peak, sent if known else "", "" if needed is None else needed


def traits_of_message(message: Any, task: str, secret: bytes, *, asks_user: bool) -> Traits:
    """The same, where the message is as it was received."""
    body, headers = original_of(message)
    return traits_of(Given(body, message.content_type, headers), task, secret, asks_user=asks_user)


def shape_of(arguments: Arguments) -> str:
    """Return the form of a task's arguments, without any value: ``int,str;page=str``."""
    args, kwargs = arguments
    shape = ",".join([_KINDS[type(value)] for value in args[:_ARGUMENTS]])
    if len(args) > _ARGUMENTS:
        shape += ",..."
    if kwargs:
        names = sorted(kwargs)
        told = [f"{_name(name)}={_KINDS[type(kwargs[name])]}" for name in names[:_ARGUMENTS]]
        shape += ";" + ",".join(told)
        if len(names) > _ARGUMENTS:
            shape += ",..."
    return shape if len(shape) <= _LENGTH else shape[:_LENGTH] + "..."


def _name(name: str) -> str:
    # A task that takes any keyword may be given data as names.
    return name if name.isidentifier() and len(name) <= 40 else "?"


Told = tuple[str, str, str, int, bool, tuple[Any, ...] | None]


class Ticket(NamedTuple):
    """A delivery that goes to the pool.

    Attributes:
        token: of this start.
        attempt: what came before it.
        payload_bytes: size of its body as the broker had it; 0 where it was not measured.
        is_acknowledged_late: it is acknowledged late, whatever its task says.
    """

    mid: str
    token: str
    queue: str
    attempt: Attempt
    payload_bytes: int = 0
    is_acknowledged_late: bool = False

    def tell(self) -> Told:
        """Return the ticket as plain words, which are cheap to pickle; most have no history."""
        history = None if self.attempt is FIRST else tuple(self.attempt)
        return self.mid, self.token, self.queue, self.payload_bytes, self.is_acknowledged_late, history

    @classmethod
    def told(cls, words: Told) -> Ticket:
        mid, token, queue, size, is_acknowledged_late, history = words
        return cls(
            mid, token, queue, FIRST if history is None else Attempt(*history), size, is_acknowledged_late
        )


#: So long at most is kept what somebody may be told of an attempt.
ATTEMPT_MS = 7 * 86_400_000

#: The fields whose words differ, in the order of the journal.
FILLED_IN = (
    *("id", "mid", "token", "task", "queue", "worker", "pid", "outcome", "deliveries", "runtime_ms", "note"),
    *("payload_bytes", "memory_kb", "fingerprint", "shape", "enqueued_at", "run_memory_kb"),
)


_EXEC, _ONE = command(b"EXEC"), bulk(b"1")


def _end_entry(settings: Settings, keys: Keys) -> bytes:
    """Return the command that adds an end to the journal, with a place for each word of ``FILLED_IN``."""
    fixed = {"v": str(SCHEMA_VERSION), "event": "finished", "state": "DLVD", "release": settings.code_version}
    words = [b"XADD", keys.journal.encode(), b"MAXLEN", b"~", b"%d" % settings.journal_maxlen, b"*"]
    template = b"*%d\r\n" % (len(words) + 2 * len(FIELDS)) + b"".join(map(bulk, words))
    for name in FIELDS:
        value = bulk(fixed.get(name, "").encode()).replace(b"%", b"%%")
        template += bulk(name.encode()) + (b"%b" if name in FILLED_IN else value)
    return template


class Recorder:
    """Writes starts and ends; one for each worker, inherited by its pool processes.

    Both are unanswered, but for starts that must survive Redis itself (``durable``), and those of tasks that
    must not run twice.

    Attributes:
        alone: what the entry says of a suspect's start: ``model.ALONE`` or ``model.IN_CELL``.
        secret: the key of fingerprints; empty until it is known.
    """

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        writer: Writer,
        node: str,
        policies: Mapping[str, tuple[Policy, bool]],
        durable: Durable | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.alone = ALONE
        self.secret = b""
        self._writer = writer
        self._durable, self._ledger = durable, ledger
        self._worker_key = keys.worker
        self._attempt_key = keys.attempt
        self._fixed_keys = keys.fixed
        self._policies = policies
        self._node = node
        self._hset = b"*4\r\n" + bulk(b"HSET") + bulk(keys.running.encode())
        self._hdel = b"*3\r\n" + bulk(b"HDEL") + bulk(keys.running.encode())
        self._done = b"*4\r\n" + bulk(b"HSET") + bulk(keys.done.encode())
        self._multi = command(b"MULTI") + self._done
        self._entry = _end_entry(settings, keys) if settings.journal == "attempts" else None
        self._tally = b"*4\r\n" + bulk(b"HINCRBY") + bulk(keys.tally.encode())
        #: The worker's names, by the boot ids in its tokens: it rejoins after it was taken for dead.
        self._workers: dict[str, str] = {}

    def start(self, ticket: Ticket, id: str, task: str, is_lost: Callable[[], bool]) -> bytes:
        """Send the start of ``ticket`` and return its entry, whether the ledger is away or not.

        Args:
            is_lost: asked while a start waits to be safe (``durable``): its message was put back.

        Raises:
            NeverBegan: its message was put back while the start waited to be safe.
            BodyNotReached: its task must not run twice, and Redis has not got its start, or refuses it.
        """
        policy, attempt = self.policy(task, ticket.queue), ticket.attempt
        start = Start.of(
            ticket.token,
            self.worker_of(ticket.token),
            id,
            task,
            queue=ticket.queue,
            pid=os.getpid(),
            at_ms=int(time.time() * 1000),
            deliveries=attempt.deliveries,
            alone=self.alone if attempt.on_trial else 0,
            max_crashes=policy.max_crashes,
            max_failures=policy.max_failures,
            payload_bytes=ticket.payload_bytes,
            diverts=self.diverts(task, ticket),
        )
        entry = start.encode()
        write = self._hset + bulk(ticket.mid.encode()) + bulk(entry)
        if not policy.rerun and start.diverts and self._ledger is not None:
            self._begin_once(self._ledger, ticket.mid, start)
        elif self._durable is None:
            self._writer.send(write)
        if self._durable is not None:
            worker_key = self._worker_key(self.worker_of(ticket.token))
            self._durable.write(write, worker_key, is_lost)
        return entry

    def _begin_once(self, ledger: Ledger, mid: str, start: Start) -> None:
        self._writer.open()  # a sign of life
        try:
            ledger.messages.begin(mid, start)
        except (LedgerUnavailable, StaleDelivery) as error:
            raise BodyNotReached(f"its task says rerun=False: {error}") from None

    def mark(self, mid: str, start: Start) -> None:
        """Overwrite the entry of a delivery that this process is letting in, before it runs."""
        self._writer.send(self._hset + bulk(mid.encode()) + bulk(start.encode()))

    def unmark(self, mid: str) -> None:
        """Take that entry away again."""
        self._writer.send(self._hdel + bulk(mid.encode()))

    def diverts(self, task: str, ticket: Ticket) -> bool:
        """Whether the message of a task is still the broker's when it begins."""
        return ticket.is_acknowledged_late or self._policies[task][1]

    def policy(self, task: str, queue: str = "") -> Policy:
        """Return the policy for messages of a task in a queue."""
        policy = self._policies[task][0]
        return policy.at(queue) if policy.by_queue else policy

    def reminder(self, running: Iterable[tuple[Ticket, bytes]]) -> bytes:
        """Return the command that tells a Redis of starts that have not ended; empty where there is none."""
        starts = [word for ticket, entry in running for word in (ticket.mid.encode(), entry, b"")]
        if not starts:
            return b""
        wanted = script("resync")
        keys = [self._fixed_keys[name].encode() for name in wanted.keys]
        return command(b"EVAL", wanted.text.encode(), b"%d" % len(keys), *keys, *starts)

    def worker_of(self, token: str) -> str:
        """Return the name that this worker had when it made ``token``."""
        boot = token.partition(".")[0]
        return self._workers.get(boot) or self._workers.setdefault(boot, f"{self._node}/{boot}")

    def finish(
        self,
        ticket: Ticket,
        id: str,
        task: str,
        how: Ended,
        outcome: str,
        runtime: float,
        note: str = "",
        given: Given | None = None,
        *,
        with_it: bytes = b"",
    ) -> bool:
        """Send the end of ``ticket``, with its journal entry in the same atomic step.

        Args:
            given: what this process ran; None when it was another one.
            with_it: commands that are carried out in the same step.
        """
        mark = bulk(ticket.token.encode()) + bulk(how.encode())
        if how is not Ended.DONE:
            return self._writer.send(self._done + mark)
        if self._entry is None:
            entry = self._tally + bulk(task.encode()) + _ONE
        else:
            entry = self._entry % self._filled_in(ticket, id, task, outcome, runtime, note, given)
        return self._writer.send(self._multi + mark + entry + with_it + _EXEC)

    def _filled_in(
        self,
        ticket: Ticket,
        id: str,
        task: str,
        outcome: str,
        runtime: float,
        note: str,
        given: Given | None,
    ) -> tuple[bytes, ...]:
        """Return the words of ``FILLED_IN``, for the journal entry of an end."""
        asks_user = self._policies[task][0].fingerprint is not None
        traits = UNKNOWN if given is None else traits_of(given, task, self.secret, asks_user=asks_user)
        memory, sent, needed = ("", "", "") if given is None else _measured(given)
        words = (
            *(known_as(id), ticket.mid, ticket.token, task, ticket.queue),
            *(self.worker_of(ticket.token), os.getpid()),
            *(outcome, ticket.attempt.deliveries, int(runtime * 1000), note, ticket.payload_bytes, memory),
            *traits,
            *(sent, needed),
        )
        raw = [str(word).encode("utf-8", "backslashreplace") for word in words]
        return tuple([b"$%d\r\n%b\r\n" % (len(word), word) for word in raw])  # `bulk`, of each

    def open_attempt(self, ticket: Ticket, request: Mapping[str, Any], body: Any, content_type: Any) -> None:
        """Leave the message of a start for who hears of its failure, be its worker dead by then (TP1-3)."""
        raw = body if isinstance(body, (bytes, str)) else b""
        told = ReportedMessage.of(request, raw, str(content_type), mid=ticket.mid, queue=ticket.queue)
        key = self._attempt_key(ticket.token).encode()
        push = command(b"RPUSH", key, json.dumps(asdict(told), default=str).encode())
        self._writer.send(push + command(b"PEXPIRE", key, b"%d" % ATTEMPT_MS))

    def close_attempt(self, ticket: Ticket) -> None:
        """Take away what :meth:`open_attempt` left: before its end, or success counts as a rollback."""
        self._writer.send(command(b"DEL", self._attempt_key(ticket.token).encode()))

    def note_unsent(self, ticket: Ticket, told: ReportedMessage) -> None:
        """Add what a start would send to what :meth:`open_attempt` left."""
        key = self._attempt_key(ticket.token).encode()
        self._writer.send(command(b"RPUSHX", key, json.dumps(asdict(told), default=str).encode()))

    def script_with_end(self, name: str, known: Mapping[str, str], arguments: Mapping[str, Any]) -> bytes:
        """Return the command that runs a script unanswered, in one step with an end."""
        wanted = script(name)
        keys = wanted.keys_of({**self._fixed_keys, **known})
        values = (
            each if isinstance(each, bytes) else str(each).encode() for each in wanted.values_of(arguments)
        )
        words = (*(key.encode() for key in keys), *values)
        return command(b"EVAL", wanted.text.encode(), b"%d" % len(keys), *words)
