"""Where a worker tries its suspects: beside its pool, in a cell, one at a time or very many in groups.

To a request it looks like the pool. The event loop hands suspects over (``group.py`` says who is tried
together), and the thread of ``runner.py`` tries them.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_poison.worker.trial.group import Group, Trial, how_many
from celery_poison.worker.trial.loading import origin_of
from celery_poison.worker.trial.runner import Runner

if TYPE_CHECKING:
    from celery_poison.worker.ending.request import GuardedRequest
    from celery_poison.worker.runtime import Runtime


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits of the worker itself, in seconds, and which ones its pool enforces.

    Attributes:
        pool: the name of the pool's module.
        enforces_soft, enforces_hard: what a pool ignores is ignored in a cell too: the task may rely on it.
    """

    soft: float | None = None
    hard: float | None = None
    enforces_soft: bool = True
    enforces_hard: bool = True
    pool: str = ""


class Cells:
    """The cells of one worker."""

    def __init__(self, runtime: Runtime, limits: TimeLimits) -> None:
        self._runtime = runtime
        self._limits = limits
        self._give_back: Callable[[GuardedRequest], Any] = lambda request: None
        self._runner = Runner(runtime, limits.pool, lambda request: self._give_back(request), self._finished)
        self._looked_for_origin = False
        #: Suspects that wait, the numbers of their connections, and whether they gave their credit back.
        self._waiting: deque[tuple[GuardedRequest, int, bool]] = deque()
        self._running: list[tuple[GuardedRequest, int, bool]] = []
        self._beginning: GuardedRequest | None = None
        self._trials: list[Trial] = []
        self._is_held = False

    def attach(self, give_back: Callable[[GuardedRequest], Any]) -> None:
        """Serve the present consumer; ``give_back`` takes a request that no cell can try."""
        self._give_back = give_back
        self.hold(False)  # who asked for it is gone

    @property
    def are_usable(self) -> bool:
        """Whether suspects can be tried in cells at all, as far as it is known."""
        runner = self._runner
        if self._runtime.settings.trial != "cell" or time.monotonic() < runner.doubts_until:
            return False
        if not self._looked_for_origin:
            self._looked_for_origin = True
            if sys.platform == "linux" and sys.executable:
                runner.origin = origin_of(self._runtime.app)
            if runner.origin is None:
                runner.complain(
                    "no other process could load this app: it is in no module, or this is not Linux"
                )
        return runner.origin is not None

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
            count = how_many(self.waiting(), self._limits.pool, self._runtime.settings.trial_group)
            self._running = [self._waiting.popleft() for _ in range(count)]
            self._trials = []
            for request, epoch, _ in self._running:
                if epoch != self._runtime.epoch or request not in state.reserved_requests:
                    continue  # revoked, or its connection was lost
                self._beginning = request
                with suppress(TaskRevokedError):
                    request.execute_using_pool(self)
            if self._trials:
                self._runner.take(Group(self._trials))
            else:
                self._finished()

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
        self._trials.append(
            Trial(
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
        self._runner.terminate(pid, signum)

    def end(self) -> None:
        """End cell and trials, now. Nothing is reported any more."""
        self._waiting.clear()
        self._runner.end()
