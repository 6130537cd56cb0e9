"""Runs in the process that executes tasks: the start is on its way before any user code runs.

:func:`run_guarded` stands where Celery's own tracer stands as the pool's target. It covers the decoding
of the body, the user's ``task_prerun`` receivers, the task itself and everything that follows it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.app.task import Task
from celery.app.trace import fast_trace_task, trace_task_ret
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown, WorkerTerminate

from celery_poison import causes
from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.evidence import Evidence
from celery_poison.ledger import Ledger
from celery_poison.ledger.journal import FIELDS, SCHEMA_VERSION
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.scripts import script
from celery_poison.ledger.wire import Wire, command
from celery_poison.policy import Policy
from celery_poison.records import ALONE, Start
from celery_poison.requests import (
    DiscardRequested,
    MemoryExhausted,
    NeverBegan,
    QuarantineRequested,
    StaleCompletion,
    TaskDied,
)
from celery_poison.task import FIRST, Attempt, PoisonTask, attempts
from celery_poison.verdict import Ended
from celery_poison.worker import deathbed
from celery_poison.worker.durable import Durable
from celery_poison.worker.lease import Lease
from celery_poison.worker.traits import UNKNOWN, Given, traits_of

Told = tuple[str, str, str, int, tuple[Any, ...] | None]


class Ticket(NamedTuple):
    """What the main process tells the pool process about one delivery."""

    mid: str
    token: str
    queue: str
    attempt: Attempt
    payload_bytes: int = 0

    def tell(self) -> Told:
        """Return it as plain words, which are cheap to pickle; most have no history to tell of."""
        history = None if self.attempt is FIRST else tuple(self.attempt)
        return self.mid, self.token, self.queue, self.payload_bytes, history

    @classmethod
    def told(cls, words: Told) -> Ticket:
        mid, token, queue, size, history = words
        return cls(mid, token, queue, FIRST if history is None else Attempt(*history), size)


def still_running() -> bytes:
    """Return the commands that tell a Redis what runs in this process, in case that it has forgotten."""
    recorder = _recorder
    return recorder.reminder(list(_running.values())) if recorder is not None else b""


class Recorder:
    """Writes starts and ends; one for each worker, inherited by its pool processes.

    Both are unanswered, but for starts that must survive Redis itself (``durable``).

    Attributes:
        alone: what the entry says of a suspect's start: ``records.ALONE`` or ``records.IN_CELL``.
        secret: the key of fingerprints; empty until it is known.
    """

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        node: str,
        policies: Mapping[str, tuple[Policy, bool]],
        journal_maxlen: int | None,
        durable: Durable | None = None,
        release: str = "",
    ) -> None:
        self.alone = ALONE
        self.secret = b""
        self._wire = wire
        self._durable = durable
        self._worker_key = keys.worker
        self._policies = policies
        self._node = node
        self._remind = script("remind")
        self._remind_keys = [vars(keys)[name].encode() for name in self._remind.keys]
        self._hset = b"*4\r\n" + _bulk(b"HSET") + _bulk(keys.running.encode())
        done = b"*4\r\n" + _bulk(b"HSET") + _bulk(keys.done.encode())
        self._multi = command(b"MULTI") + done
        self._done = done
        self._end = b"" if journal_maxlen is None else self._xadd(keys, journal_maxlen, release)
        self._tally = b"*4\r\n" + _bulk(b"HINCRBY") + _bulk(keys.tally.encode())
        self._statics: dict[tuple[str, str], tuple[str, str]] = {}
        #: The worker's names, by the boot ids in its tokens: it is reborn when it was taken for dead.
        self._workers: dict[str, str] = {}

    def start(self, ticket: Ticket, id: str, task: str) -> bytes:
        """Send the start of ``ticket`` and return its entry, whether the ledger is away or not.

        Raises:
            NeverBegan: its message was put back while the start waited to be safe (``durable``).
        """
        head, tail = self._statics.get((task, ticket.queue)) or self._static(task, ticket.queue)
        attempt = ticket.attempt
        entry = (
            f'["R","{ticket.token}",{_quoted(self.worker_of(ticket.token))},{os.getpid()},'
            f"{int(time.time() * 1000)},{attempt.deliveries},{self.alone if attempt.on_trial else 0},"
            f"{_quoted(id)},{head}{ticket.payload_bytes}{tail}"
        ).encode()
        write = self._hset + _bulk(ticket.mid.encode()) + _bulk(entry)
        if self._durable is None:
            self._wire.send(write)
        else:
            worker_key = self._worker_key(self.worker_of(ticket.token))
            self._durable.write(write, worker_key, lambda: _is_lost(self, ticket))
        return entry

    def reminder(self, running: Iterable[tuple[Ticket, bytes]]) -> bytes:
        starts = [word for ticket, entry in running for word in (ticket.mid.encode(), entry, b"")]
        if not starts:
            return b""
        text, keys = self._remind.text.encode(), self._remind_keys
        return command(b"EVAL", text, b"%d" % len(keys), *keys, *starts)

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
    ) -> bool:
        """Send the end of ``ticket``, with its journal entry in the same atomic step.

        Args:
            given: what this process ran; None when it was another one.
        """
        token = _bulk(ticket.token.encode())
        mark = token + _bulk(how.value.encode())
        if how is not Ended.DONE:
            return self._wire.send(self._done + mark)
        if not self._end:
            count = self._tally + _bulk(task.encode()) + _bulk(b"1")
            return self._wire.send(self._multi + mark + count + _EXEC)
        attempt, traits, memory = ticket.attempt, UNKNOWN, b""
        if given is not None:
            asks_user = self._policies[task][0].fingerprint is not None
            traits = traits_of(given, task, self.secret, asks_user=asks_user)
            memory = b"%d" % peak_memory_kb()
        entry = self._end % (
            _bulk(id.encode()),
            _bulk(ticket.mid.encode()),
            token,
            _bulk(task.encode()),
            _bulk(ticket.queue.encode()),
            _bulk(self.worker_of(ticket.token).encode()),
            _bulk(b"%d" % os.getpid()),
            _bulk(outcome.encode()),
            _bulk(b"%d" % attempt.deliveries),
            _bulk(b"%d" % int(runtime * 1000)),
            _bulk(note.encode()),
            _bulk(b"%d" % ticket.payload_bytes),
            _bulk(memory),
            _bulk(traits.fingerprint.encode()),
            _bulk(traits.shape.encode()),
        )
        return self._wire.send(self._multi + mark + entry + _EXEC)

    def _static(self, task: str, queue: str) -> tuple[str, str]:
        policy, diverts = self._policies[task]
        head = f"{json.dumps(task)},{json.dumps(queue)},{policy.max_crashes},{policy.max_failures},"
        found = self._statics[task, queue] = (head, f",{int(diverts)}]")
        return found

    def _xadd(self, keys: Keys, maxlen: int, release: str) -> bytes:
        fixed = {"v": str(SCHEMA_VERSION), "event": "finished", "state": "DLVD", "release": release}
        moving = {"id", "mid", "token", "task", "queue", "worker", "pid", "outcome", "deliveries"}
        moving |= {"runtime_ms", "note", "payload_bytes", "memory_kb", "fingerprint", "shape"}
        words = [b"XADD", keys.journal.encode(), b"MAXLEN", b"~", b"%d" % maxlen, b"*"]
        text = b"*%d\r\n" % (len(words) + 2 * len(FIELDS)) + b"".join(map(_bulk, words))
        for name in FIELDS:
            value = b"%b" if name in moving else _bulk(fixed.get(name, "").encode()).replace(b"%", b"%%")
            text += _bulk(name.encode()) + value
        return text


#: Characters of a task's own words that the journal keeps.
NOTE_LENGTH = 500

_EXEC = command(b"EXEC")
_SAFE = frozenset("0123456789abcdefABCDEFghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ-_.:@/")


def peak_memory_kb() -> int:
    """Return the most resident memory that this process has had so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _RSS_UNIT


#: Elsewhere than on macOS it is told in KiB already.
_RSS_UNIT = 1024 if sys.platform == "darwin" else 1


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def _quoted(text: str) -> str:
    return f'"{text}"' if _SAFE.issuperset(text) else json.dumps(text, ensure_ascii=False)


#: Set once in the worker's main process, before its pool forks.
_recorder: Recorder | None = None
_ledger: Ledger
_lease: Lease
#: True where tasks share the main process, which SystemExit and MemoryError must not reach.
_contained = False
#: True where nothing may become of a task but what Celery makes of it (``poison_observe_only``).
_observing = False

#: What runs in this process: task id -> its ticket and its entry in the ledger.
_running: dict[str, tuple[Ticket, bytes]] = {}


def configure(
    recorder: Recorder, ledger: Ledger, lease: Lease, *, contained: bool, observing: bool = False
) -> None:
    """Make this process and its future children record through ``recorder``."""
    global _recorder, _ledger, _lease, _contained, _observing
    _recorder, _ledger, _lease, _contained = recorder, ledger, lease, contained
    _observing = observing
    PoisonTask._observed = observing
    PoisonTask.checked_by(_check_ownership)


def _check_ownership(task: Task) -> None:
    """Raise StaleCompletion when the message of ``task``, which has just ended, has a new owner (EMS-8)."""
    found = _running.get(task.request.id or "")
    if _observing or found is None or not _lease.is_doubtful(found[0].token):
        return
    ticket, entry = found
    try:
        _ledger.reclaim(ticket.mid, Start.decode(entry))
    except StaleDelivery as error:
        raise StaleCompletion(str(error)) from None
    except LedgerUnavailable:
        return  # nobody can know


#: Tokens of starts that wait in a pool of threads or greenlets, and were delivered again meanwhile.
_refused: set[str] = set()


def refuse(tokens: set[str]) -> None:
    """Let none of these begin in this process."""
    _refused.update(tokens)


def admit(tokens: set[str]) -> None:
    """Take back the refusal of these."""
    _refused.difference_update(tokens)


def _is_lost(recorder: Recorder, ticket: Ticket) -> bool:
    """Whether the message of a start that has not begun was put back: its connection or lease was lost."""
    if _observing:
        return False
    if ticket.token in _refused:
        _refused.discard(ticket.token)
        return True
    try:
        return _lease.is_doubtful(ticket.token) and _ledger.is_buried(recorder.worker_of(ticket.token))
    except LedgerUnavailable:
        return False  # nobody can know


def _begin(recorder: Recorder, ticket: Ticket, id: str, task: str) -> bytes:
    if not deathbed.is_armed:
        deathbed.arm()
    if _is_lost(recorder, ticket):
        raise NeverBegan("its message was put back before it began")
    return recorder.start(ticket, id, task)


def run_guarded(
    tracer: Callable[..., Any],
    told: Told,
    task: str,
    uuid: str,
    request: Any,
    body: Any,
    content_type: Any,
    content_encoding: Any,
) -> Any:
    """Record the start, run Celery's tracer, record the end; returns what the tracer returns."""
    recorder = _recorder
    if recorder is None:
        return tracer(task, uuid, request, body, content_type, content_encoding)
    ticket = Ticket.told(told)
    try:
        _running[uuid] = ticket, _begin(recorder, ticket, uuid, task)
    except NeverBegan as error:
        return _failed(error)
    begun, given = time.monotonic(), Given(body, content_type, request)
    attempts[uuid] = ticket.attempt
    try:
        result = tracer(task, uuid, request, body, content_type, content_encoding)
    except (WorkerShutdown, WorkerTerminate):
        raise
    except Reject as rejection:
        how = Ended.ROLLED_BACK if rejection.requeue else Ended.DONE
        recorder.finish(ticket, uuid, task, how, "rejected", time.monotonic() - begun, given=given)
        raise
    except MemoryError as error:
        return _died(causes.MEMORY_ERROR, error)
    except MemoryExhausted as error:
        return _died(causes.MEMORY_ERROR, error)
    except SystemExit as error:
        return _died(causes.SYSTEM_EXIT, error)
    except Exception:
        ran = time.monotonic() - begun
        recorder.finish(ticket, uuid, task, Ended.DONE, "failure", ran, given=given)
        raise
    finally:
        attempts.pop(uuid, None)
        _running.pop(uuid, None)
    how, outcome, note = _outcome(result)
    if how is Ended.NOT:
        return result  # another start owns the message: this one leaves nothing behind
    recorder.finish(ticket, uuid, task, how, outcome, time.monotonic() - begun, note, given)
    return result


def _died(cause: str, error: BaseException) -> Any:
    if _observing or not _contained:
        raise error
    return _failed(TaskDied(cause, repr(error), Evidence(rss_kb=peak_memory_kb())))


def _failed(error: Exception) -> Any:
    try:
        raise error
    except Exception:
        return 1, ExceptionInfo(internal=True), 0.0


def _outcome(result: Any) -> tuple[Ended, str, str]:
    failed, info, _ = result
    if not failed:
        return Ended.DONE, "success", ""
    error = info.exception
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    note = str(error)[:NOTE_LENGTH] if isinstance(error, DiscardRequested) else ""
    return *outcome_of(error), note


def outcome_of(error: BaseException) -> tuple[Ended, str]:
    """Return how a start ended that raised ``error``, and the journal's word for it."""
    match error:
        case StaleDelivery():
            return Ended.NOT, "stale"
        case QuarantineRequested():
            return Ended.INTERRUPTED, "quarantined"
        case DiscardRequested():
            return Ended.DONE, "discarded"
        case Retry():
            return Ended.DONE, "retry"
        case Reject(requeue=True):
            return Ended.ROLLED_BACK, "rejected"
        case Reject():
            return Ended.DONE, "rejected"
        case Ignore():
            return Ended.DONE, "ignored"
        case _:
            return Ended.DONE, "failure"


# Plain functions: the pool pickles its target by name for every task.


def run_fast(*arguments: Any) -> Any:
    """The pool's target where Celery would use ``fast_trace_task``."""
    return run_guarded(fast_trace_task, *arguments)


def run_plain(*arguments: Any) -> Any:
    """The pool's target where Celery would use ``trace_task_ret``."""
    return run_guarded(trace_task_ret, *arguments)
