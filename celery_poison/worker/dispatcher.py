"""The last gate before the pool: a candidate runs alone, so that its death would prove its guilt.

Every request of the worker passes here, guarded or not, immediate or delayed. A candidate goes to a cell,
beside the pool. If that cannot be, or if its last trial ended with its worker, it waits until the pool is
empty; while it waits or runs, the others wait in memory, in their order, and so do those who wait for a cell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from celery.worker import state

from celery_poison.sandbox.pool import Cells

#: Seconds between two looks at the pool while somebody waits for it to become empty.
LOOK_AGAIN = 0.02


class Dispatcher:
    """Stands in for ``consumer.on_task_request``.

    Args:
        dispatch: Celery's own ``on_task_request``.
        is_alone: tells whether a request must run alone.
        may_start: False while no task may be started at all (``poison_fail_open=False``).
        later: calls a function after some seconds, on the event loop.
        bury: lets the pool notice processes that died. It does so by itself, but only every five
            seconds in the worst case, and here everybody may be waiting for it.
        cells: where a candidate is tried while the pool goes on with other work.
        received: is told of every request that comes: its message was received and decoded.
    """

    def __init__(
        self,
        dispatch: Callable[[Any], Any],
        is_alone: Callable[[Any], bool],
        may_start: Callable[[], bool],
        later: Callable[[float, Callable[[], None]], Any],
        bury: Callable[[], Any],
        cells: Cells,
        received: Callable[[Any], object],
    ) -> None:
        self._dispatch = dispatch
        self._is_alone = is_alone
        self._may_start = may_start
        self._later = later
        self._bury = bury
        self._cells = cells
        self._received = received
        self._waiting: deque[Any] = deque()
        self._alone: Any = None
        self._is_in_pool = False  # he who runs alone
        self._looking = False

    def __call__(self, request: Any) -> None:
        self._received(request)
        if self._waiting or self._alone is not None or self._is_alone(request) or not self._may_start():
            self._waiting.append(request)
            self.look()
        else:
            self._dispatch(request)

    def take_back(self, request: Any) -> None:
        """Let a candidate run in the pool that could be tried in no cell."""
        if request is self._alone:
            self._is_in_pool = True
            self._dispatch(request)
        else:
            self(request)

    def look(self) -> None:
        """Let through whoever may run now."""
        self._advance()
        if (self._waiting or self._alone is not None) and not self._looking:
            self._looking = True
            self._later(LOOK_AGAIN, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._bury()
        self.look()

    def _advance(self) -> None:
        if self._alone is not None and self._alone not in state.reserved_requests:
            self._alone, self._is_in_pool = None, False
        somebody_must_be_alone = self._let_through()
        self._cells.hold(self._is_in_pool or somebody_must_be_alone)

    def _let_through(self) -> bool:
        """Return whether the first who waits can only run alone, and something runs."""
        while self._waiting and self._alone is None and self._may_start():
            request = self._waiting[0]
            if request not in state.reserved_requests:  # revoked, or its connection was lost
                self._waiting.popleft()
            elif not self._is_alone(request):
                self._dispatch(self._waiting.popleft())
            elif self._cells.takes(request) and not request.needs_idle_worker:
                self._cells.admit(self._waiting.popleft())
            elif self._nothing_runs():
                self._run_alone(self._waiting.popleft())
            else:
                return True
        return False

    def _run_alone(self, request: Any) -> None:
        self._alone = request
        if self._cells.takes(request):
            self._cells.admit(request, first=True)
            self._cells.hold(False)
        else:
            self._is_in_pool = True
            self._dispatch(request)

    def _nothing_runs(self) -> bool:
        waiting = set(map(id, (*self._waiting, *self._cells.waiting())))
        try:
            return all(id(request) in waiting for request in state.reserved_requests)
        except RuntimeError:  # a pool thread finished a request meanwhile: look again
            return False

    def clear(self) -> None:
        """Forget everybody who waits: their connection is gone and they will be delivered again."""
        self._waiting.clear()
