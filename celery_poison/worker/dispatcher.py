"""Dispatcher, before the pool: a candidate runs alone, so that its death would prove its guilt.

Every request of the worker passes here, or by :mod:`.road`. A candidate goes to a cell, beside the pool. If
that cannot be, or if its last trial ended with its worker, it waits until the pool is empty; while it waits
or runs, the others wait in memory, in their order, and so do those who wait for a cell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from celery.worker import state

from celery_poison.cells.pool import Cells
from celery_poison.settings import Settings
from celery_poison.worker.health import Health
from celery_poison.worker.lease import Lease
from celery_poison.worker.recorder import Recorder
from celery_poison.worker.rejoin import Rejoin

#: Seconds between two looks at the pool while a message waits for it to become empty.
LOOK_AGAIN = 0.02
#: Seconds after which a pool looks for dead processes by itself: no pause between two requests to is longer.
MAINTAIN = 5.0


@dataclass(eq=False, repr=False)
class Dispatcher:
    """Sends requests to the pool, or to cells, in the place of ``consumer.on_task_request``.

    Attributes:
        cells: where a candidate is tried while the pool goes on with other work.
        recorder: closes the admit mark of every request that comes: its message was received and decoded.
        waiting: those that may not begin yet.
        alone: the one beside which nothing may begin.
    """

    consumer: Any
    settings: Settings
    rejoin: Rejoin
    lease: Lease
    health: Health
    cells: Cells
    recorder: Recorder
    waiting: deque[Any] = field(default_factory=deque, init=False)
    alone: Any = field(default=None, init=False)
    _is_in_pool = False
    _looking = False
    #: When the pool is asked for dead processes next, and the pause after that.
    _maintain_at, _maintain_pause = 0.0, LOOK_AGAIN
    #: Number of the broker connection.
    _connection = 0

    def __post_init__(self) -> None:
        self.dispatch: Callable[[Any], Any] = self.consumer.on_task_request  # Celery's own

    def __call__(self, request: Any) -> None:
        if (delivery := getattr(request, "poison", None)) is not None:
            delivery.close_mark(self.recorder)
        if self.waiting or self.alone is not None or _is_alone(request) or not self.may_start():
            self.waiting.append(request)
            self.look()
        else:
            self.dispatch(request)

    def may_start(self) -> bool:
        """Whether tasks may be started at this moment.

        Not while the ledger is away (``poison_fail_open=False``), and not while this worker, taken for dead,
        is still being recovered from: what it started now would be taken for dead too.
        """
        if self.settings.observe_only:
            return True
        is_alive = not self.rejoin.is_fenced and not self.lease.is_doubtful()
        is_up = self.health.is_up and not self.lease.is_unanswered
        return is_alive and (is_up or self.settings.fail_open)

    def take_back(self, request: Any) -> None:
        """Let a candidate run in the pool that could be tried in no cell."""
        if request is self.alone:
            self._is_in_pool = True
            self.dispatch(request)
        else:
            self(request)

    def look(self) -> None:
        """Let through what may run now."""
        # Celery before 5.7 has only the active ones after a lost connection.
        here = state.reserved_requests, state.active_requests
        if self.alone is not None and not any(self.alone in requests for requests in here):
            self.alone, self._is_in_pool = None, False
        somebody_must_be_alone = self._let_through()
        self.cells.make_wait(self._is_in_pool or somebody_must_be_alone)
        if (self.waiting or self.alone is not None) and not self._looking:
            self._looking = True
            self.consumer.timer.call_after(LOOK_AGAIN, partial(self._look_again, self._connection))

    def _look_again(self, connection: int) -> None:
        if connection != self._connection:
            return
        self._looking = False
        self._maintain()
        self.look()

    def _maintain(self) -> None:
        """Have the pool look for dead processes; by itself it does so every five seconds in the worst case.

        The pauses grow: where each new process dies at once, there would be a storm of forks.
        """
        if (now := monotonic()) >= self._maintain_at:
            self._maintain_at = now + self._maintain_pause
            self._maintain_pause = min(2 * self._maintain_pause, MAINTAIN)
            self.consumer.pool.maintain_pool()

    def _let_through(self) -> bool:
        """Return whether the first who waits can only run alone, and something runs."""
        while self.waiting and self.alone is None and self.may_start():
            request = self.waiting[0]
            if request not in state.reserved_requests:  # revoked, or its connection was lost
                self.waiting.popleft()
            elif not _is_alone(request):
                self.dispatch(self.waiting.popleft())
            elif self.cells.takes(request) and not request.needs_idle_worker:
                self.cells.admit(self.waiting.popleft())
            elif self._nothing_runs():
                self.alone = self.waiting.popleft()
                self._maintain_at, self._maintain_pause = 0.0, LOOK_AGAIN
                if self.cells.takes(request):
                    self.cells.admit(request, first=True)
                    self.cells.make_wait(False)
                else:
                    self._is_in_pool = True
                    self.dispatch(request)
            else:
                return True
        return False

    def _nothing_runs(self) -> bool:
        waiting = set(map(id, (*self.waiting, *(each.request for each in self.cells.waiting))))
        try:
            here = (*state.reserved_requests, *state.active_requests)
            return all(id(request) in waiting for request in here)
        except RuntimeError:  # a pool thread finished a request meanwhile: look again
            return False

    def clear(self) -> None:
        """Forget everybody who waits: their connection is gone and they will be delivered again."""
        self.waiting.clear()
        # Celery before 5.6 forgets with the connection who wanted to be called.
        self._connection += 1
        self._looking = False


def _is_alone(request: Any) -> bool:
    return getattr(request, "runs_alone", False)  # a request of an unguarded task has no such thing
