"""One trial: what the sandbox asks of its worker, time limits, and how a cell ended.

What passes between a worker and its cell are pickled messages on a socket, as with Celery's pool processes.
The worker sends a :class:`Setup` first, then ``(arguments, alone)`` for each suspect. The cell answers
``("ready", pid, tasks)`` first, then ``("accepted", pid, time)`` and ``("result", ok, pickled value, stays)``
for each suspect.
"""

from __future__ import annotations

import pickle
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded
from celery import Celery

from celery_poison import causes
from celery_poison.causes import Evidence
from celery_poison.requests import TaskDied, TrialSpoilt

_LENGTH = struct.Struct("!Q")


class Prepared(NamedTuple):
    """A process that is ready to run suspects.

    Attributes:
        run: takes the arguments of one start and what it says about what runs beside it; returns what a
            pool process would return.
        tasks: names of those that it knows.
    """

    run: Callable[[tuple[Any, ...], int], Any]
    tasks: tuple[str, ...]


#: Makes the fresh process ready for the app's tasks, given the descriptor of the worker's lease.
Prepare = Callable[[Celery, int], Prepared]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an app comes from.

    Attributes:
        name: what ``celery -A`` takes, or empty.
        script: path of the script that makes the app, if it is in no module.
        attribute: its name in that script.
    """

    name: str = ""
    script: str = ""
    attribute: str = ""


class Setup(NamedTuple):
    """How a fresh process becomes a cell.

    Attributes:
        origin: the app.
        prepare: makes it ready to run that app's tasks.
        patched_for: the pool for whose greenlets the worker is patched; empty: it is not.
    """

    origin: Origin
    prepare: Prepare
    patched_for: str = ""


def send(sock: socket.socket, message: Any) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone.
        Exception: whatever the message's parts raise when they are pickled; nothing was sent then.
    """
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive(sock: socket.socket) -> Any:
    """Return the next message.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return pickle.loads(_exactly(sock, length))


def info_of(error: Exception) -> ExceptionInfo:
    """Return ``error`` as a pool process sends one."""
    try:
        raise error
    except Exception:
        return ExceptionInfo()


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a worker's pool is like.

    Attributes:
        name: of Celery's module that has it, or the pool that it is derived from.
        slots: tasks that it runs at once.
        contained: whether tasks share the main process.
        soft, hard: time limits of the worker itself, in seconds.
        enforces_soft, enforces_hard: what a pool ignores is ignored in a cell too: the task may rely on it.
        is_custom: it is not one of Celery's own, so that no cell knows how to run its tasks.
    """

    name: str
    slots: int
    contained: bool
    soft: float | None
    hard: float | None
    enforces_soft: bool
    enforces_hard: bool
    is_custom: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Host:
    """The worker to which a sandbox belongs.

    Attributes:
        loop: its event loop: the ``consumer`` and the number (``epoch``) of the present broker connection.
        shutdown: ``is_begun`` once the worker is to end, and begins nothing more.
        complain: logs an error that no message suffers from, once.
        prepare: returns what makes a fresh process one that runs tasks for this worker.
        explain: returns what is known about the death of a cell, and keeps it for whoever asks for its pid.
        lease: descriptor of the memory in which the worker keeps its lease.
    """

    app: Celery
    pool: PoolFacts
    loop: Any
    shutdown: Any
    complain: Callable[[Exception], object]
    prepare: Callable[[], Prepare]
    explain: Callable[[int, Death], Evidence]
    lease: int


@dataclass(slots=True, eq=False)
class Trial:
    """One suspect, and who is to hear of it: what Celery hands to a pool.

    Attributes:
        request: as Celery makes it, of a guarded task.
        soft, hard: time limits, in seconds.
        begun: whether the cell has begun with it.
        overdue: its hard limit is over.
        terminated_by: the signal by which somebody wants it to end; 0: nobody does.
    """

    request: Any
    arguments: tuple[Any, ...]
    accepted: Callable[[int, float], Any]
    timed_out: Callable[[bool, float], Any]
    ended: Callable[[Any], Any]
    failed: Callable[[ExceptionInfo], Any]
    soft: float | None
    hard: float | None
    begun: bool = False
    overdue: bool = False
    terminated_by: int = 0
    _soft_at: float = _NEVER
    _hard_at: float = _NEVER

    def begin(self) -> None:
        """Start the clock."""
        self.begun, now = True, time.monotonic()
        self._soft_at = now + self.soft if self.soft else _NEVER
        self._hard_at = now + self.hard if self.hard else _NEVER

    def pause(self) -> float:
        """Return the seconds until the next limit."""
        return min(self._soft_at, self._hard_at) - time.monotonic()

    def is_over(self) -> bool:
        """Whether the hard limit is over."""
        if time.monotonic() >= self._hard_at:
            self.overdue, self._hard_at = True, _NEVER
        return self.overdue

    def is_soft_over(self) -> bool:
        """Whether the soft limit is over; told once."""
        if time.monotonic() < self._soft_at:
            return False
        self._soft_at = _NEVER
        return True


@dataclass(frozen=True, slots=True)
class Death:
    """How a cell ended.

    Attributes:
        status: exit code, negative for a signal; None when its watcher ended first.
        peak: the most memory it had, in bytes; 0 if that is not known.
        why: ``oom`` if it used too much memory; ``pressed`` if it was killed because others did.
    """

    status: int | None
    peak: int = 0
    why: str = ""

    @property
    def was_killed(self) -> bool:
        """Whether anybody may have killed it: the suspect, or somebody outside."""
        return not self.why and self.status in (None, -signal.SIGKILL)

    @property
    def cause(self) -> str:
        """A word of :mod:`celery_poison.causes`."""
        return causes.OOM if self.why else causes.from_exit_code(self.exit_code)

    @property
    def exit_code(self) -> int:
        """The kernel kills a cell whose watcher is gone."""
        return -signal.SIGKILL if self.status is None else self.status

    def __str__(self) -> str:
        watcher = "; its watcher was killed with it" if self.status is None else ""
        memory = f"; at most {self.peak >> 20} MiB of memory" if self.peak else ""
        return f"its cell {causes.describe(self.cause)}{watcher}{memory}"


def error_of(trial: Trial, death: Death, evidence: Evidence) -> Exception:
    """Return what the request of a suspect is told whose cell has ended."""
    if trial.overdue:
        error: Exception = TimeLimitExceeded(trial.hard)
    elif trial.terminated_by:
        error = Terminated(-trial.terminated_by)
    elif death.why == "pressed":
        error = TrialSpoilt("others had used up the memory", evidence=evidence)
    elif evidence.is_from_outside:
        error = TrialSpoilt("somebody asked its cell to end", death.cause, evidence)
    else:
        error = TaskDied(death.cause, str(death), evidence)
    return error
