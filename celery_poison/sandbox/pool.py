"""Where a worker tries its suspects: beside its pool, each in a cell, some cells side by side.

To a request it looks like the pool. The event loop hands suspects over, and the threads of ``runner.py`` try
them, one for each cell.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_poison.errors import ConfigurationError
from celery_poison.forking import real_thread_starter
from celery_poison.sandbox.child import origin_of
from celery_poison.sandbox.process import CannotOpen, OpenCell
from celery_poison.sandbox.runner import Runner
from celery_poison.sandbox.trial import Host, Origin, Setup, Suspect, TimeLimits, Trial
from celery_poison.settings import Settings

#: Slots of a worker for which it opens a cell, and the most that it opens.
SLOTS_FOR_A_CELL, MOST_CELLS = 4, 4
#: Seconds in which no cell is opened after one could not be.
DOUBT = 60.0


class Cells:
    """The cells of one worker.

    Args:
        lease: descriptor of the memory in which the worker keeps its lease.
        slots: tasks that the worker runs at once.
    """

    def __init__(self, host: Host, settings: Settings, limits: TimeLimits, *, lease: int, slots: int) -> None:
        self._host = host
        self._settings = settings
        self._limits = limits
        self._lease = lease
        self._give_back: Callable[[Any], Any] = lambda request: None
        count = settings.trial_cells or how_many(slots)
        self._free = [Runner(host, self._open, self._refused, self._finished) for _ in range(count)]
        #: Those that are at a trial: its request, the number of its connection, and whether it gave its
        #: credit back.
        self._running: dict[Runner, tuple[Suspect, int, bool]] = {}
        self._waiting: deque[tuple[Suspect, int, bool]] = deque()
        self._origin: Origin | None = None
        self._looked_for_origin = False
        #: No cell could be had, and none should be tried before (``time.monotonic``).
        self._doubts_until = 0.0
        self._beginning: Suspect | None = None
        self._trial: Trial | None = None
        self._is_held = self._is_choosing = False

    def attach(self, give_back: Callable[[Any], Any]) -> None:
        """Serve the present consumer; ``give_back`` takes a request that no cell can try."""
        self._give_back = give_back
        self.hold(False)  # who asked for it is gone

    @property
    def are_usable(self) -> bool:
        """Whether suspects can be tried in cells at all, as far as it is known."""
        if self._settings.trial != "cell" or time.monotonic() < self._doubts_until:
            return False
        if not self._looked_for_origin:
            self._looked_for_origin = True
            if sys.platform == "linux" and sys.executable:
                self._origin = origin_of(self._host.app)
            if self._origin is None:
                self._complain(
                    "no other process could load this app: it is in no module, or this is not Linux"
                )
        return self._origin is not None

    def _complain(self, why: str) -> None:
        self._host.complain(
            ConfigurationError(f"suspects cannot be tried in cells and run alone in the pool instead: {why}")
        )

    @property
    def is_busy(self) -> bool:
        """Whether a suspect runs in a cell; not while its cell only opens."""
        return any(runner.has_begun for runner in self._running)

    def takes(self, request: Suspect) -> bool:
        """Whether ``request`` can be tried in a cell."""
        return not request.is_refused_by_cells and self.are_usable

    def admit(self, request: Suspect, *, first: bool = False) -> None:
        """Try ``request`` when its turn comes. It takes no prefetch credit from other messages meanwhile.

        Args:
            first: nothing else may run here until it has ended, so that another message would only wait
                for it, while other workers are free.
        """
        if not first:
            with suppress(AttributeError):  # a consumer without it
                self._host.consumer.qos.increment_eventually()
        add = self._waiting.appendleft if first else self._waiting.append
        add((request, self._host.epoch, not first))
        self._next()

    def hold(self, is_held: bool) -> None:
        """Begin no trial for the time being, or go on."""
        self._is_held = is_held
        self._next()

    def waiting(self) -> list[Suspect]:
        """Return whoever has been admitted and not begun."""
        return [request for request, _, _ in self._waiting]

    def _next(self) -> None:
        """Begin what can begin. With greenlets one may end meanwhile, and come here too."""
        if self._is_choosing:
            return
        self._is_choosing = True
        try:
            self._begin_trials()
        finally:
            self._is_choosing = False

    def _begin_trials(self) -> None:
        while self._waiting and self._free and not self._is_held and not self._host.stopping:
            request, epoch, is_credited = self._waiting.popleft()
            if epoch == self._host.epoch and request in state.reserved_requests:
                self._beginning, self._trial = request, None
                with suppress(TaskRevokedError):
                    request.execute_using_pool(self)
                if self._trial is not None:
                    runner = self._free.pop()
                    self._running[runner] = request, epoch, is_credited
                    runner.take(self._trial)
                    continue
            # It was revoked, or its connection was lost.
            self._take_credit(epoch, is_credited=is_credited)

    def _take_credit(self, epoch: int, *, is_credited: bool) -> None:
        if is_credited and epoch == self._host.epoch:
            with suppress(AttributeError):
                self._host.consumer.qos.decrement_eventually()

    def _finished(self, runner: Runner) -> None:
        _, epoch, is_credited = self._running.pop(runner)
        self._free.append(runner)
        self._take_credit(epoch, is_credited=is_credited)
        self._next()

    def _refused(self, trial: Trial, error: Exception) -> None:
        if isinstance(error, CannotOpen):
            self._doubts_until = time.monotonic() + DOUBT
        self._complain(str(error) if isinstance(error, CannotOpen) else repr(error))
        trial.request.is_refused_by_cells = True
        self._give_back(trial.request)

    def _open(self) -> OpenCell:
        """Open a cell (in the thread of its runner)."""
        assert self._origin is not None
        patched_for = self._limits.pool if real_thread_starter() is not None else ""
        setup = Setup(self._origin, self._host.prepare_cell(), patched_for)
        return OpenCell(setup, self._settings.trial_memory_limit or 0, self._lease)

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
        self._trial = Trial(
            self._beginning,
            args,
            accept_callback,
            timeout_callback,
            callback,
            error_callback,
            (soft_timeout or limits.soft) if limits.enforces_soft else None,
            (timeout or limits.hard) if limits.enforces_hard else None,
        )

    def terminate_job(self, pid: int, signum: int | None = None) -> None:
        """End what runs in the cell ``pid``; SIGUSR1 interrupts it, as in a pool process."""
        for runner in list(self._running):
            runner.terminate(pid, signum)

    def end(self) -> None:
        """End cells and trials, now. Nothing is reported any more."""
        self._waiting.clear()
        runners = [*self._free, *self._running]
        for runner in runners:
            runner.stop()
        for runner in runners:
            runner.join()


def how_many(slots: int) -> int:
    """Return how many cells a worker opens at most, where nobody has said it."""
    return max(1, min(MOST_CELLS, slots // SLOTS_FOR_A_CELL))
