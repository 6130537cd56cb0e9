"""One trial: what the sandbox asks of its worker, time limits, and how a cell ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded
from celery import Celery

from celery_poison import causes
from celery_poison.causes import Evidence
from celery_poison.ledger import Ledger
from celery_poison.upstream.requests import TaskDied, TrialSpoilt


class Home(NamedTuple):
    """What a cell has from its nursery.

    Attributes:
        ledger: not connected yet; None: the app was loaded anew, and says later which it is.
        lease: descriptor of the memory with the worker's lease.
    """

    app: Celery
    ledger: Ledger | None
    lease: int


#: Makes a forked process ready for one run of the task of this name.
Prepare = Callable[[Home, str], object]


class Job(NamedTuple):
    """What a cell does: ``prepare`` first, then what a pool process would call."""

    prepare: Prepare
    task: str
    target: Callable[..., Any]
    arguments: tuple[Any, ...]


class Order(NamedTuple):
    """What a nursery is asked for.

    Attributes:
        slot: the index that a pool process would have.
        number: part of the cell's name.
        limit: bytes of memory that it may have; 0: as much as there is.
    """

    slot: int = 0
    number: int = 0
    limit: int = 0


def info_of(error: Exception) -> ExceptionInfo:
    """Return ``error`` as a pool process sends one."""
    try:
        raise error
    except Exception:
        return ExceptionInfo()


NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a worker's pool is like.

    Attributes:
        name: of Celery's module that has it, or the pool that it is derived from.
        contained: whether tasks share the main process.
        soft, hard: time limits of the worker itself, in seconds.
    """

    name: str
    slots: int
    contained: bool
    soft: float | None
    hard: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Host:
    """The worker to which a sandbox belongs.

    Attributes:
        loop: its event loop: the ``consumer`` and the number (``epoch``) of the present broker connection.
        complain: logs an error that no message suffers from, once.
        prepare: is given what a start says about what runs beside it.
        ask_where: has the cell of this pid, which hangs, write down where it is.
        explain: returns what is known about the death of a cell, and keeps it for whoever asks for its pid.
        lease: descriptor of the memory with the worker's lease.
    """

    pool: PoolFacts
    loop: Any
    shutdown: Any
    complain: Callable[[Exception], object]
    prepare: Callable[[int], Prepare]
    ask_where: Callable[[int], object]
    explain: Callable[[int, Death], Evidence]
    lease: int


@dataclass(slots=True, eq=False)
class Trial:
    """One suspect, what Celery hands to a pool with it, and what becomes of it.

    Attributes:
        epoch: number of the connection by which it was admitted.
        is_credited: whether it gave its prefetch credit back.
        is_handed: whether Celery has handed it over; the attributes down to ``hard`` are known then.
        soft, hard: time limits, in seconds.
        since: when it was admitted, or its cell was asked for (``time.monotonic``).
        tries: how many cells were asked for; ``begun``: whether one has begun with it.
        overdue: its hard limit is over; ``terminated_by``: the signal by which it is to end, 0 for none.
        is_pressed: it is to end since memory is short; ``is_alone``: none may be beside it.
        has_company: another cell was beside its own.
        taken: the bytes that its cell did not share with the nursery.
    """

    request: Any
    epoch: int
    is_credited: bool
    is_handed: bool = False
    target: Callable[..., Any] = print
    arguments: tuple[Any, ...] = ()
    accepted: Callable[[int, float], Any] = print
    timed_out: Callable[[bool, float], Any] = print
    ended: Callable[[Any], Any] = print
    failed: Callable[[ExceptionInfo], Any] = print
    soft: float | None = None
    hard: float | None = None
    order: Order = field(default_factory=Order)
    since: float = field(default_factory=time.monotonic)
    tries: int = 0
    begun: bool = False
    overdue: bool = False
    terminated_by: int = 0
    is_pressed: bool = False
    is_alone: bool = False
    has_company: bool = False
    taken: int = 0
    _soft_at: float = NEVER
    _hard_at: float = NEVER

    def begin(self) -> None:
        self.begun, now = True, time.monotonic()
        self._soft_at = now + self.soft if self.soft else NEVER
        self._hard_at = now + self.hard if self.hard else NEVER

    def pause(self) -> float:
        return min(self._soft_at, self._hard_at) - time.monotonic()

    def is_over(self) -> bool:
        if time.monotonic() >= self._hard_at:
            self.overdue, self._hard_at = True, NEVER
        return self.overdue

    def is_soft_over(self) -> bool:
        """Whether the soft limit is over; told once."""
        if time.monotonic() < self._soft_at:
            return False
        self._soft_at = NEVER
        return True


@dataclass(frozen=True, slots=True)
class Death:
    """How a cell ended.

    Attributes:
        status: exit code, negative for a signal; None: its watcher ended first, and the kernel killed it.
        peak: the most memory it had, in bytes; 0 if that is not known.
        taken: what of that it did not share with its nursery.
        why: ``oom`` if it used too much memory; ``pressed`` if it was killed because others did.
    """

    status: int | None
    peak: int = 0
    taken: int = 0
    why: str = ""

    @property
    def exit_code(self) -> int:
        return -signal.SIGKILL if self.status is None else self.status

    @property
    def was_killed(self) -> bool:
        return not self.why and self.exit_code == -signal.SIGKILL

    @property
    def cause(self) -> str:
        return causes.OOM if self.why else causes.from_exit_code(self.exit_code)

    def __str__(self) -> str:
        watcher = "; its watcher was killed with it" if self.status is None else ""
        memory = f"; peak {self.peak >> 20} MiB" if self.peak else ""
        return f"died alone: {causes.short(self.cause)}{watcher}{memory}"


def error_of(trial: Trial, death: Death, evidence: Evidence) -> Exception:
    """Return what the request of a suspect is told whose cell has ended."""
    if trial.overdue:
        error: Exception = TimeLimitExceeded(trial.hard)
    elif trial.terminated_by:
        error = Terminated(-trial.terminated_by)
    elif death.why == "pressed":
        error = TrialSpoilt("others had used up the memory", evidence=evidence)
    elif evidence.is_from_outside:
        error = TrialSpoilt("its cell was asked to end", death.cause, evidence)
    else:
        error = TaskDied(death.cause, str(death), evidence)
    return error
