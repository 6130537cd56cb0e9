"""Where a worker tries its suspects: beside its pool, one at a time, in a cell.

Very many are tried in groups, each in a thread of the cell. A group that dies proves nothing: what had not
ended is tried again in groups of half the size, and alone at last.

To a request it looks like the pool. The event loop hands suspects over, one thread (a greenlet, where
there are such) talks to the cell, and what it hears comes back to the event loop.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, TimeLimitExceeded
from celery.exceptions import TaskRevokedError
from celery.utils.log import get_logger
from celery.worker import state

from celery_poison.errors import ConfigurationError
from celery_poison.requests import TaskDied, TrialSpoilt
from celery_poison.worker.deathbed import LastWords
from celery_poison.worker.trial.loading import Cellmate, Origin, origin_of
from celery_poison.worker.trial.opened import CannotOpen, Death, OpenCell

if TYPE_CHECKING:
    from celery_poison.worker.request import GuardedRequest
    from celery_poison.worker.runtime import Runtime

logger = get_logger("celery_poison")

#: Seconds after which a cell is closed that nobody needs.
IDLE = 30.0
#: Seconds in which no cell is opened after one could not be.
DOUBT = 60.0
#: Seconds for which the thread waits for a cell at a time.
TICK = 1.0
#: Seconds for which a worker must outlive a cell that was killed: who kills both may reach the cell first.
OUTLIVE = 0.5
#: So many suspects are tried one by one.
FEW = 16
#: Pools whose tasks run together in one process anyway.
CONCURRENT = ("thread", "gevent", "eventlet")


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits of the worker itself, in seconds, and which ones its pool enforces.

    Attributes:
        enforces_soft, enforces_hard: what a pool ignores is ignored in a cell too: the task may rely on it.
    """

    soft: float | None = None
    hard: float | None = None
    enforces_soft: bool = True
    enforces_hard: bool = True


@dataclass(frozen=True, slots=True)
class _Trial:
    request: GuardedRequest
    arguments: tuple[Any, ...]
    accepted: Callable[[int, float], Any]
    timed_out: Callable[[bool, float], Any]
    ended: Callable[[Any], Any]
    failed: Callable[[ExceptionInfo], Any]
    soft: float | None
    hard: float | None


class _Clock:
    """When the time limits of a trial are over; each is told once.

    Attributes:
        begun, timed_out: whether the trial has begun, and whether its hard limit was reached.
    """

    def __init__(self) -> None:
        self.begun = self.timed_out = False
        self._soft_at = self._hard_at = float("inf")

    def begin(self, trial: _Trial) -> None:
        now = time.monotonic()
        self.begun = True
        self._soft_at, self._hard_at = (
            now + (trial.soft or self._soft_at),
            now + (trial.hard or self._hard_at),
        )

    @property
    def pause(self) -> float:
        """Seconds until the next one."""
        return min(self._soft_at, self._hard_at) - time.monotonic()

    def is_over(self) -> bool:
        if time.monotonic() < self._hard_at:
            return False
        self.timed_out, self._hard_at = True, float("inf")
        return True

    def is_soft_over(self) -> bool:
        if time.monotonic() < self._soft_at:
            return False
        self._soft_at = float("inf")
        return True


class Cells:
    """The cells of one worker.

    Args:
        give_back: takes a request that can be tried in no cell.
    """

    def __init__(self, runtime: Runtime, limits: TimeLimits) -> None:
        self._runtime = runtime
        self._limits = limits
        self._give_back: Callable[[GuardedRequest], Any] = lambda request: None
        self._origin: Origin | None = None
        self._looked_for_origin = False
        self._not_before = 0.0
        #: Suspects that wait, the numbers of their connections, and whether they gave their credit back.
        self._waiting: deque[tuple[GuardedRequest, int, bool]] = deque()
        self._running: list[tuple[GuardedRequest, int, bool]] = []
        self._beginning: GuardedRequest | None = None
        self._batch: list[_Trial] = []
        #: Who of those that the thread has in hand has not ended, by their numbers in the cell.
        self._left: dict[int, _Trial] = {}
        self._trials: queue.Queue[list[_Trial] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._cell: OpenCell | None = None
        self._terminated_by = 0
        self._ending = False
        self._is_held = False

    # --- on the event loop ---------------------------------------------------------------------

    def attach(self, give_back: Callable[[GuardedRequest], Any]) -> None:
        """Serve the present consumer; ``give_back`` takes a request that no cell can try."""
        self._give_back = give_back
        self.hold(False)  # who asked for it is gone

    @property
    def are_usable(self) -> bool:
        """Whether suspects can be tried in cells at all, as far as it is known."""
        if self._runtime.settings.trial != "cell" or time.monotonic() < self._not_before:
            return False
        if not self._looked_for_origin:
            self._looked_for_origin = True
            self._origin = (
                origin_of(self._runtime.app) if sys.platform == "linux" and sys.executable else None
            )
            if self._origin is None:
                self._complain(
                    "no other process could load this app: it is in no module, or this is not Linux"
                )
        return self._origin is not None

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def takes(self, request: GuardedRequest) -> bool:
        """Whether ``request`` can be tried in a cell."""
        return not request.is_refused_by_cells and self.are_usable

    def admit(self, request: GuardedRequest, *, first: bool = False) -> None:
        """Try ``request`` when its turn comes. It takes no prefetch credit from other messages meanwhile.

        Args:
            first: nothing else may run here until it has ended, so that another message would only wait
                for it, while other workers are free.
        """
        if not first:
            with suppress(AttributeError):  # a consumer without it
                self._runtime.consumer.qos.increment_eventually()
        add = self._waiting.appendleft if first else self._waiting.append
        add((request, self._runtime.epoch, not first))
        self._next()

    def hold(self, is_held: bool) -> None:
        """Begin no trial for the time being, or go on."""
        self._is_held = is_held
        self._next()

    def waiting(self) -> list[GuardedRequest]:
        """Return whoever has been admitted and not begun."""
        return [request for request, _, _ in self._waiting]

    def _next(self) -> None:
        while self._may_begin():
            self._running = self._next_group()
            self._batch = []
            for request, epoch, _ in self._running:
                if epoch != self._runtime.epoch or request not in state.reserved_requests:
                    continue  # revoked, or its connection was lost
                self._beginning = request
                with suppress(TaskRevokedError):
                    request.execute_using_pool(self)
            if self._batch:
                self._begin_thread()
                self._trials.put(self._batch)
            else:
                self._finished()

    def _next_group(self) -> list[tuple[GuardedRequest, int, bool]]:
        """Take those who are tried next: one, unless very many wait."""
        is_crowded = len(self._waiting) > FEW
        group = [self._waiting.popleft()]
        most = self._most_beside(group[0][0]) if is_crowded else 1
        while self._waiting and len(group) < (most := min(most, self._most_beside(self._waiting[0][0]))):
            group.append(self._waiting.popleft())
        return group

    def _most_beside(self, request: GuardedRequest) -> int:
        """Return of how many a group may be at most in which ``request`` is tried."""
        most: int = self._runtime.settings.trial_group
        if self._runtime.pool not in CONCURRENT or request.poison is None:
            return 1
        history = request.poison.history
        # Of a group nobody can be ended for its own time limit.
        (hard, soft), task, limits = request.time_limits, request.task, self._limits
        is_limited = (limits.enforces_hard and (hard or task.time_limit or limits.hard)) or (
            limits.enforces_soft and (soft or task.soft_time_limit or limits.soft)
        )
        return min(most, history.group or most) if history.may_be_grouped and not is_limited else 1

    def _may_begin(self) -> bool:
        is_free = not self._running and not self._is_held and not self._runtime.stopping
        return is_free and bool(self._waiting)

    def _finished(self) -> None:
        ended, self._running = self._running, []
        for _, epoch, is_credited in ended:
            if is_credited and epoch == self._runtime.epoch:
                with suppress(AttributeError):
                    self._runtime.consumer.qos.decrement_eventually()
        self._next()

    def apply_async(
        self,
        target: Any,
        args: tuple[Any, ...],
        accept_callback: Any,
        timeout_callback: Any,
        callback: Any,
        error_callback: Any,
        soft_timeout: float | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> None:
        """As the pool's, for the request whose turn it is."""
        assert self._beginning is not None
        limits = self._limits
        self._terminated_by = 0
        self._batch.append(
            _Trial(
                self._beginning,
                args,
                accept_callback,
                timeout_callback,
                callback,
                error_callback,
                (soft_timeout or limits.soft) if limits.enforces_soft else None,
                (timeout or limits.hard) if limits.enforces_hard else None,
            )
        )

    def terminate_job(self, pid: int, signum: int | None = None) -> None:
        """End what runs in the cell; SIGUSR1 interrupts it, as in a pool process."""
        cell = self._cell
        if cell is None or cell.pid != pid:
            return
        if signum == signal.SIGUSR1:
            cell.order(b"s")
        else:
            self._terminated_by = signum or signal.SIGTERM
            cell.order(b"k")

    def end(self) -> None:
        """End cell and trial, now. Nothing is reported any more."""
        self._ending = True
        self._waiting.clear()
        self._trials.put(None)
        if (cell := self._cell) is not None:
            cell.order(b"k")
        if self._thread is not None:
            self._thread.join(2 * TICK)
            if cell is not None and self._thread.is_alive():
                cell.abandon()

    def _begin_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-cells", daemon=True)
            self._thread.start()

    # --- in the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._ending:
            try:
                trials = self._trials.get(timeout=IDLE)
            except queue.Empty:
                self._close()
                continue
            if trials is None:
                break
            self._left = dict(enumerate(trials))
            try:
                self._try(trials)
            except Exception as error:
                if self._ending:
                    break
                self._close(kill=True)
                self._refused([*self._left.values()], error)
            self._report(self._finished)
        self._close(kill=True)

    def _report(self, call: Callable[[], Any]) -> None:
        if not self._ending:
            self._runtime.bridge.call(call)

    def _try(self, trials: list[_Trial]) -> None:
        for last in (False, True):
            try:
                cell = self._opened()
                trials = self._refuse_strangers(trials, cell)
                # The connection of the others was lost before they began.
                trials = [trial for trial in trials if trial.request.epoch == self._runtime.epoch]
                self._left = dict(enumerate(trials))
                if not trials:
                    return
                cell.run([trial.arguments for trial in trials], trials[0].request.alone)
            except CannotOpen as error:
                if error.was_killed and not last:
                    continue
                self._not_before = time.monotonic() + DOUBT
                self._refused(trials, error)
                return
            except OSError:  # the cell has ended since it was used last
                self._close(kill=True)
            else:
                if self._watch(trials, cell):
                    return
            if last:
                raise CannotOpen("the cell ends before it begins a task")

    def _opened(self) -> OpenCell:
        cell = self._cell
        if cell is None:
            runtime = self._runtime
            assert self._origin is not None
            about = Cellmate(
                self._origin,
                runtime.worker,
                runtime.plugin.ledger_url,
                runtime.settings.namespace,
                runtime.secret,
                runtime.deathbed.path if runtime.deathbed else "",
            )
            limit = runtime.settings.trial_memory_limit or 0
            cell = self._cell = OpenCell(about, limit, runtime.lease.fd)
        return cell

    def _refuse_strangers(self, trials: list[_Trial], cell: OpenCell) -> list[_Trial]:
        """Return whoever's task is there when the app is loaded anew."""
        strangers = [trial for trial in trials if trial.request.type not in cell.tasks]
        if strangers:
            name = strangers[0].request.type
            self._not_before = time.monotonic() + DOUBT
            self._refused(strangers, CannotOpen(f"task {name} is not there when the app is loaded anew"))
        return [trial for trial in trials if trial not in strangers]

    def _watch(self, trials: list[_Trial], cell: OpenCell) -> bool:
        """Report what becomes of trials; False when they never began."""
        first, clock = trials[0], _Clock()  # whoever has limits is alone
        while True:
            event = cell.next(min(TICK, clock.pause))
            match event:
                case Death():
                    self._close(kill=True)
                    if clock.begun:
                        ended = [*self._left.values()]
                        together = len(trials) > 1
                        self._died(ended, event, cell.pid, timed_out=clock.timed_out, together=together)
                    return clock.begun
                case "accepted", pid, at:
                    clock.begin(first)
                    for trial in trials:
                        self._report(partial(trial.accepted, pid, at))
                case "result", number, ok, value, stays:
                    trial = self._left.pop(number)
                    if not stays and not self._left:
                        self._close()
                    self._report(partial(trial.ended if ok else trial.failed, value))
                    if not self._left:
                        return True
            self._enforce(clock, first, cell)

    def _enforce(self, clock: _Clock, trial: _Trial, cell: OpenCell) -> None:
        if clock.is_over() or self._terminated_by:
            cell.kill()
        elif clock.is_soft_over():
            self._report(partial(trial.timed_out, True, trial.soft or 0.0))
            cell.order(b"s")

    def _died(self, trials: list[_Trial], death: Death, pid: int, *, timed_out: bool, together: bool) -> None:
        who = trials[0].request.humaninfo() if len(trials) == 1 else f"{len(trials)} messages together"
        logger.warning("celery_poison: %s on trial: %s", who, death)
        deathbed = self._runtime.deathbed
        words = deathbed.read(pid) if deathbed else LastWords()
        evidence = death.evidence(words, self._runtime.exits.limit_kb)
        self._runtime.exits.note(pid, death.exit_code, death.peak // 1024, words)
        error: Exception
        if timed_out:
            error = TimeLimitExceeded(trials[0].hard)
        elif self._terminated_by:
            error = Terminated(-self._terminated_by)
        elif death.why == "pressed":
            error = TrialSpoilt("others had used up the memory", evidence=evidence)
        elif evidence.is_from_outside:
            error = TrialSpoilt("somebody asked its cell to end", death.cause, evidence)
        else:
            if death.was_killed:
                time.sleep(OUTLIVE)
            error = TaskDied(death.cause, str(death), evidence)
            if together:
                error.group = max(1, len(trials) // 2)
        for trial in trials:
            self._report(partial(self._end, trial, error, together=together))
        if timed_out:
            self._report(partial(trials[0].timed_out, False, trials[0].hard or 0.0))

    def _end(self, trial: _Trial, error: Exception, *, together: bool) -> None:
        if together and isinstance(error, Terminated) and not trial.request.was_ended:
            error = TrialSpoilt("another one of its group was ended")
        trial.failed(_info_of(error))

    def _refused(self, trials: list[_Trial], error: Exception) -> None:
        self._complain(str(error) if isinstance(error, CannotOpen) else repr(error))
        for trial in trials:
            trial.request.is_refused_by_cells = True
            self._report(partial(self._give_back, trial.request))

    def _complain(self, why: str) -> None:
        self._runtime.complain(
            ConfigurationError(f"suspects cannot be tried in cells and run alone in the pool instead: {why}")
        )

    def _close(self, *, kill: bool = False) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.close(kill=kill)


def _info_of(error: Exception) -> ExceptionInfo:
    try:
        raise error
    except Exception:
        return ExceptionInfo()
