"""One trial: what it has from its worker, its cell as the worker sees it, and how that ended."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded
from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.forking import no_fork
from celery_poison.causes import Evidence
from celery_poison.cells.cell import Job, Prepare, info_of, pair, put, take
from celery_poison.cells.nursery import Nursery
from celery_poison.settings import Settings
from celery_poison.upstream.requests import TaskDied, TrialSpoilt

logger = get_logger("celery_poison")

NEVER = float("inf")
#: Seconds in which a nursery must have forked a cell: it may have an app to load first.
SETTING_UP = 120.0
#: Seconds in which a cell must be ready to run a task, unless Celery gives those of the pool more.
READY = 10.0
#: Seconds in which a cell must have ended that was killed, has given its result, or says nothing more.
ENDING = 5.0
#: Seconds in which a cell whose time is over can say where it hangs.
ANSWERING = 0.25
#: Seconds for which a worker must outlive a cell that was killed, if its watcher does so too. Who kills all
#: processes of a worker does not leave out the one next to the cell for so long.
MOMENT = 0.02
#: Seconds for which it must outlive both: a busy machine may interrupt who kills all of them for so long.
OUTLIVE = 0.5


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The facts about a worker's pool.

    Attributes:
        name: of Celery's module that has it, or the pool that it is derived from.
        contained: whether tasks share the main process.
        soft, hard: time limits of the worker itself, in seconds.
        ready: seconds in which a process of it must be ready (``worker_proc_alive_timeout``).
    """

    name: str
    slots: int
    contained: bool
    soft: float | None
    hard: float | None
    ready: float = 0.0

    @property
    def ends_hangs(self) -> bool:
        """Whether it ends a task at its hard time limit; Celery's other pools ignore that."""
        return self.name not in ("solo", "thread", "eventlet")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Host:
    """The worker to which cells belong.

    Attributes:
        worker: its name in the ledger.
        loop: its event loop: the ``consumer`` and the number (``epoch``) of the present broker connection.
        complain: logs an error that no message suffers from, once.
        prepare: returns what makes a forked process ready for a request.
        exits: asks a cell that hangs where it is, and explains how one has ended.
        lease: descriptor of the memory with the worker's lease.
    """

    worker: str
    settings: Settings
    pool: PoolFacts
    loop: Any
    shutdown: Any
    complain: Callable[[Exception], object]
    prepare: Callable[[Any], Prepare]
    exits: Any
    lease: int


@dataclass(frozen=True, slots=True)
class Death:
    """How a cell ended.

    Attributes:
        status: exit code, negative for a signal.
        peak: the most memory it had, in bytes; 0 if that is not known.
        why: ``oom`` if it used too much memory; ``pressed`` if it was killed because others did.
        was_watched: else its watcher ended first, and the kernel killed it.
    """

    status: int
    peak: int = 0
    why: str = ""
    was_watched: bool = True

    @property
    def cause(self) -> str:
        return causes.OOM if self.why else causes.from_exit_code(self.status)

    def __str__(self) -> str:
        watcher = "" if self.was_watched else "; its watcher was killed with it"
        memory = f"; peak {self.peak >> 20} MiB" if self.peak else ""
        return f"died alone: {causes.short(self.cause)}{watcher}{memory}"


class Trial:
    """One suspect, from its admission to the end of its last cell.

    From ``open`` to ``tell`` the thread that hears the cells has it; before and afterwards the event loop.

    Attributes:
        epoch: number of the connection by which it was admitted.
        is_credited: whether it gave its prefetch credit back.
        is_alone: whether none may run beside it.
        callbacks: by the names that Celery has for a pool; empty until it has handed the request over, with
            the ``target``, its ``arguments``, and the time limits ``soft`` and ``hard``, in seconds.
        since: when it was admitted, or its cell was asked for (``time.monotonic``).
        slot: the index that a pool process would have.
        was_short: no cell could be had for it, once.
        pid, death: of its cell; 0 and None before they are known.
        begun: its cell has begun with it; ``has_result``: and has given its result.
        overdue: its hard limit is over; ``terminated_by``: the signal by which it is to end, 0 for none.
        is_pressed: it is to end since memory is short; ``is_killed``: it was ordered to end.
        has_company: another cell was beside its own.
    """

    def __init__(self, request: Any, epoch: int, *, is_alone: bool = False) -> None:
        self.request, self.epoch = request, epoch
        self.is_alone, self.is_credited = is_alone, not is_alone
        self.callbacks: dict[str, Callable[..., Any]] = {}
        self.target: Callable[..., Any] = print
        self.arguments: tuple[Any, ...] = ()
        self.soft: float | None = None
        self.hard: float | None = None
        self.since, self.slot, self.was_short = time.monotonic(), 0, False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.pid, self.terminated_by = 0, 0
        self.death: Death | None = None
        self.begun = self.overdue = self.is_pressed = self.has_company = False
        self.has_result = self._is_silent = self.is_killed = False
        self._soft_at = self._hard_at = self._abandon_at = self._over_at = NEVER
        self._kill_at = time.monotonic() + SETTING_UP
        self._watcher = 0

    def open(self, host: Host, nursery: Nursery, report: Callable[[Callable[[], Any]], None]) -> None:
        """Have its cell forked; ``report`` passes a call on to the event loop.

        Raises:
            OSError: there is no nursery, or no descriptor left; or it has much to do.
            Exception: what the arguments of the task raise when they are pickled.
        """
        self._begin_anew()
        self._host, self._nursery, self._report = host, nursery, report
        self._limit = host.settings.trial_memory_limit or 0
        number = host.pool.slots + 1 + self.slot
        job = Job(host.prepare(self.request), self.slot, number, self.target, self.arguments)
        self._box = os.fdopen(os.memfd_create("poison-box"), "r+b")
        put(self._box, job)
        # A pool process that were forked meanwhile would hold the other ends open.
        with no_fork():
            (self._control, watchers), (self._data, cells) = pair(), pair()
            with closing(watchers), closing(cells):
                fds = [each.fileno() for each in (watchers, cells, self._box)]
                nursery.fork(self._limit, [*fds, host.lease])
        self.sockets = self._control, self._data

    def close(self) -> None:
        for part in (*self.sockets, self._box):
            part.close()

    def interrupt(self) -> None:
        """Raise its soft time limit in it."""
        _send(os.kill, self.pid, signal.SIGUSR1)

    @property
    def ready(self) -> float:
        """Seconds in which its cell must be ready to run a task."""
        return max(READY, self._host.pool.ready)

    @property
    def why_short(self) -> str:
        """Say why its cell has not begun with it."""
        if self.is_killed and self.pid:
            return f"a forked process is not ready for a task after {self.ready:g} s: see worker_process_init"
        return "a forked process ends before it begins a task"

    def kill(self) -> None:
        """Kill the cell, with the processes that it has started; the watcher reports its end."""
        self.is_killed, self._abandon_at = True, time.monotonic() + ENDING
        self._soft_at = self._hard_at = self._kill_at = NEVER
        _send(os.killpg, self.pid, signal.SIGKILL)

    def abandon(self) -> None:
        """Kill the watcher too, which a suspect may have stopped."""
        _send(os.killpg, self.pid, signal.SIGKILL)
        if self.death is None:
            _send(os.kill, self._watcher, signal.SIGKILL)

    # --- what its cell says ----------------------------------------------------------------------------

    def hear(self) -> list[Any]:
        """Pass on what watcher and cell have said; return the sockets on which nothing more will come."""
        while self.death is None and (facts := _next(self._control)) is not None:
            self._hear_watcher(json.loads(facts) if facts else {})
        while not self._is_silent and (said := _next(self._data)) is not None:
            self._hear_cell(pickle.loads(said) if said else ("silent",))
        if self.death is not None and self._over_at == NEVER:
            self._over_at = time.monotonic() + (MOMENT if self._is_proof() else 0.0)
        return [self._control] * (self.death is not None) + [self._data] * self._is_silent

    def _hear_watcher(self, facts: dict[str, Any]) -> None:
        if "pid" in facts:
            self.pid, self._watcher = facts["pid"], facts["watcher"]
            if not self.begun:  # what its cell says may be heard first
                self._kill_at = min(self._kill_at, time.monotonic() + self.ready)
            return
        if self.is_killed and facts:
            facts["why"] = ""  # whatever the kernel did meanwhile
        elif not facts:
            _send(os.killpg, self.pid, signal.SIGKILL)  # what it has started; its watcher would have done so
        self.death = Death(**facts) if facts else Death(-signal.SIGKILL, was_watched=False)

    def _hear_cell(self, said: tuple[Any, ...]) -> None:
        now = time.monotonic()
        match said:
            case "accepted", pid, at:
                self.begun, self._kill_at = True, NEVER
                self._soft_at = now + self.soft if self.soft else NEVER
                self._hard_at = now + self.hard if self.hard else NEVER
                with suppress(OSError):
                    self._control.send(b"!")
                self._call_back("accept_callback", pid, at)
            case ("result",):
                self.has_result, self._kill_at = True, now + ENDING
                self._soft_at = self._hard_at = NEVER
                try:
                    ok, value = take(self._box)
                except BaseException as error:
                    # Such as an unknown class; or the user's code, which reads it, ends this thread.
                    raised = error if isinstance(error, Exception) else RuntimeError(repr(error))
                    ok, value = False, info_of(raised)
                self._call_back("callback" if ok else "error_callback", value)
            case _:
                self._is_silent, self._kill_at = True, min(self._kill_at, now + ENDING)

    def _call_back(self, name: str, *args: Any) -> None:
        self._report(partial(self.callbacks[name], *args))

    # --- its limits, and its end -----------------------------------------------------------------------

    def _is_proof(self) -> bool:
        """Whether the death counts against the suspect, if its worker outlives the cell."""
        is_ours = self.overdue or self.terminated_by or self.is_pressed or self.has_result
        was_killed = self.death is not None and not self.death.why and self.death.status == -signal.SIGKILL
        return self.begun and was_killed and not is_ours

    def is_over(self) -> bool:
        """Enforce time limits; return whether the cell has ended and its end may be reported."""
        now = time.monotonic()
        if self.death is not None:
            if now >= self._over_at and not self.is_killed and self._is_proof():
                self.is_killed = True
                if _next(self._control) is not None:  # its watcher has ended, too
                    self._over_at = now + OUTLIVE - MOMENT
            return now >= self._over_at
        if self.begun and not (self.has_result or self.is_killed):
            self._keep_limits(now)
        if now > self._kill_at:
            if not self.pid and not self._nursery.has_ended():  # all sockets that it has are closed then
                logger.error("celery_poison: a nursery has forked no cell in %d s: it is killed", SETTING_UP)
                self._nursery.end()
            self.kill()
        if now > self._abandon_at:  # its watcher does not obey
            self.abandon()
            self._abandon_at = now + ENDING
        return False

    def _keep_limits(self, now: float) -> None:
        if self.terminated_by:
            self.kill()
        elif now >= self._hard_at:
            self.overdue, self._soft_at, self._hard_at = True, NEVER, NEVER
            self._host.exits.ask(self.pid)
            self._kill_at = now + ANSWERING
        elif now >= self._soft_at:
            self._soft_at = NEVER
            self._call_back("timeout_callback", True, self.soft)
            self.interrupt()

    def pause(self) -> float:
        """Return the seconds until a limit is over, or the end may be reported."""
        limits = self._soft_at, self._hard_at, self._kill_at, self._abandon_at, self._over_at
        return min(limits) - time.monotonic()

    def tell(self) -> bool:
        """Report how it ended; return False where it is to be tried again, through no fault of its own."""
        death = self.death
        assert death is not None
        if self.has_result:
            return True
        # Beside others it is not known who has used up the memory, unless it has a limit of its own.
        is_over_limit = bool(death.why) and 0 < self._limit < death.peak
        is_shared = self.has_company and death.why and not is_over_limit
        self.is_pressed = bool(self.is_pressed or is_shared)
        if not self.begun or self.is_pressed:
            return False
        # Its cell is killed then, too.
        evidence = self._host.exits.of_cell(self.pid, death)
        story = self._story(death, evidence)
        logger.warning("celery_poison: %s on trial: %s", self.request.humaninfo(), story)
        if is_over_limit:
            evidence = replace(evidence, limit_kb=self._limit >> 10, limit_of="trial")
        # On the event loop, where it is known whether it was revoked.
        self._report(lambda: self.callbacks["error_callback"](info_of(self.error_of(death, evidence))))
        if self.overdue:
            self._call_back("timeout_callback", False, self.hard)
        return True

    def _story(self, death: Death, evidence: Evidence) -> str:
        """Return how it ended, in words: its own death, or what came from outside and decides nothing."""
        if self.overdue and self.hard:
            return f"met its hard time limit of {self.hard:g} s"
        error = self.error_of(death, evidence)
        if isinstance(error, TrialSpoilt):
            return f"{error.args[0]}, which decides nothing: it is tried again"
        return "was revoked" if isinstance(error, Terminated) else str(death)

    def error_of(self, death: Death, evidence: Evidence) -> Any:
        """Return the error that its request gets for this end of the cell."""
        if self.overdue:
            return TimeLimitExceeded(self.hard)
        if self.terminated_by:
            return Terminated(-self.terminated_by)
        if death.why == "pressed":
            return TrialSpoilt("others had used up the memory", evidence=evidence)
        if evidence.is_from_outside:
            return TrialSpoilt("its cell was asked to end", death.cause, evidence)
        return TaskDied(death.cause, str(death), evidence)


def _send(kill: Callable[[int, int], None], pid: int, signum: int) -> None:
    """Send a signal to a process, or a group; not to 0, which would be this one, or 1: all of them."""
    with suppress(OSError):
        if pid > 1:
            kill(pid, signum)


def _next(sock: Any) -> bytes | None:
    """Return the next message; empty at the end of all, None when there is none yet."""
    try:
        return bytes(sock.recv(4096))
    except BlockingIOError:
        return None
    except OSError:
        return b""
