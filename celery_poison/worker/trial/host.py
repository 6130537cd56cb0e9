"""Where a worker tries its suspects: beside its pool, one at a time, in a cell.

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
        self._running: tuple[GuardedRequest, int, bool] | None = None
        self._trials: queue.Queue[_Trial | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._cell: OpenCell | None = None
        self._terminated_by = 0
        self._is_handed_over = False
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
        return self._running is not None

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
            self._running = request, epoch, _ = self._waiting.popleft()
            if epoch != self._runtime.epoch or request not in state.reserved_requests:
                self._finished()  # revoked, or its connection was lost
                continue
            self._is_handed_over = False
            with suppress(TaskRevokedError):
                request.execute_using_pool(self)
            if not self._is_handed_over:
                self._finished()

    def _may_begin(self) -> bool:
        is_free = self._running is None and not self._is_held and not self._runtime.stopping
        return is_free and bool(self._waiting)

    def _finished(self) -> None:
        assert self._running is not None
        (_, epoch, is_credited), self._running = self._running, None
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
        assert self._running is not None
        limits = self._limits
        self._terminated_by = 0
        self._is_handed_over = True
        self._begin_thread()
        self._trials.put(
            _Trial(
                self._running[0],
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
                trial = self._trials.get(timeout=IDLE)
            except queue.Empty:
                self._close()
                continue
            if trial is None:
                break
            try:
                self._try(trial)
            except Exception as error:
                if self._ending:
                    break
                self._close(kill=True)
                self._refused(trial, error)
            self._report(self._finished)
        self._close(kill=True)

    def _report(self, call: Callable[[], Any]) -> None:
        if not self._ending:
            self._runtime.bridge.call(call)

    def _try(self, trial: _Trial) -> None:
        for last in (False, True):
            try:
                cell = self._opened_for(trial)
                if trial.request.epoch != self._runtime.epoch:
                    return  # its connection was lost before it began
                cell.run(trial.arguments, trial.request.alone)
            except CannotOpen as error:
                if error.was_killed and not last:
                    continue
                self._not_before = time.monotonic() + DOUBT
                self._refused(trial, error)
                return
            except OSError:  # the cell has ended since it was used last
                self._close(kill=True)
            else:
                if self._watch(trial, cell):
                    return
            if last:
                raise CannotOpen("the cell ends before it begins a task")

    def _opened_for(self, trial: _Trial) -> OpenCell:
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
        if trial.request.type not in cell.tasks:
            raise CannotOpen(f"task {trial.request.type} is not there when the app is loaded anew")
        return cell

    def _watch(self, trial: _Trial, cell: OpenCell) -> bool:
        """Report what becomes of a trial; False when it never began."""
        soft_at = hard_at = float("inf")
        begun = timed_out = False
        while True:
            now = time.monotonic()
            event = cell.next(min(TICK, soft_at - now, hard_at - now))
            now = time.monotonic()
            match event:
                case Death():
                    self._close(kill=True)
                    if begun:
                        self._died(trial, event, cell.pid, timed_out=timed_out)
                    return begun
                case "accepted", pid, at:
                    begun = True
                    soft_at, hard_at = now + (trial.soft or soft_at), now + (trial.hard or hard_at)
                    self._report(partial(trial.accepted, pid, at))
                case "result", ok, value, stays:
                    if not stays:
                        self._close()
                    self._report(partial(trial.ended if ok else trial.failed, value))
                    return True
            if now >= hard_at:
                timed_out, hard_at = True, float("inf")
                cell.kill()
            elif self._terminated_by:
                cell.kill()
            elif now >= soft_at:
                soft_at = float("inf")
                self._report(partial(trial.timed_out, True, trial.soft or 0.0))
                cell.order(b"s")

    def _died(self, trial: _Trial, death: Death, pid: int, *, timed_out: bool) -> None:
        logger.warning("celery_poison: %s on trial: %s", trial.request.humaninfo(), death)
        deathbed = self._runtime.deathbed
        words = deathbed.read(pid) if deathbed else LastWords()
        evidence = death.evidence(words, self._runtime.exits.limit_kb)
        self._runtime.exits.note(pid, death.exit_code, death.peak // 1024, words)
        error: Exception
        if timed_out:
            error = TimeLimitExceeded(trial.hard)
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
        self._report(partial(trial.failed, _info_of(error)))
        if timed_out:
            self._report(partial(trial.timed_out, False, trial.hard or 0.0))

    def _refused(self, trial: _Trial, error: Exception) -> None:
        self._complain(str(error) if isinstance(error, CannotOpen) else repr(error))
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
