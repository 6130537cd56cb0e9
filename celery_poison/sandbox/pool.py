"""Where a worker tries its suspects: beside its pool, each in a cell, some cells side by side.

To a request it looks like the pool. The event loop hands suspects over, and threads try them, one for each
cell.
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
from functools import partial
from typing import Any

from celery.exceptions import TaskRevokedError
from celery.utils.log import get_logger
from celery.worker import state

from celery_poison.errors import ConfigurationError
from celery_poison.forking import real_thread_starter
from celery_poison.sandbox.child import origin_of
from celery_poison.sandbox.process import CannotOpen, OpenCell
from celery_poison.sandbox.trial import Death, Host, Origin, Setup, Trial, error_of, info_of
from celery_poison.settings import Settings

logger = get_logger("celery_poison")

#: Slots of a worker for which it opens a cell, and the most that it opens.
SLOTS_FOR_A_CELL, MOST_CELLS = 4, 4
#: Seconds in which no cell is opened after one could not be.
DOUBT = 60.0
#: Seconds after which a cell is closed that nobody needs.
IDLE = 30.0
#: Seconds for which the thread waits for a cell at a time.
TICK = 1.0
#: Seconds for which a worker must outlive a cell that was killed, if its watcher does so too. Who kills all
#: processes of a worker does not leave out the one next to the cell for so long.
MOMENT = 0.02
#: Seconds for which it must outlive both: a busy machine may interrupt who kills all of them for so long.
OUTLIVE = 0.5


class Cells:
    """The cells of one worker."""

    def __init__(self, host: Host, settings: Settings) -> None:
        self.host = host
        self._loop = host.loop
        self._settings = settings
        self._give_back: Callable[[Any], Any] = lambda request: None
        count = settings.trial_cells or how_many(host.pool.slots)
        self._free = [Runner(self) for _ in range(count)]
        #: Those that are at a trial: its request, the number of its connection, and whether it gave its
        #: credit back.
        self._running: dict[Runner, tuple[Any, int, bool]] = {}
        self._waiting: deque[tuple[Any, int, bool]] = deque()
        self._origin: Origin | None = None
        self._looked_for_origin = False
        #: No cell could be had, and none should be tried before (``time.monotonic``).
        self._doubts_until = 0.0
        self._beginning: Any = None
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
        if self.host.pool.is_custom:
            return False
        if not self._looked_for_origin:
            self._looked_for_origin = True
            if sys.platform == "linux" and sys.executable:
                self._origin = origin_of(self.host.app)
            if self._origin is None:
                self._complain(
                    "no other process could load this app: it is in no module, or this is not Linux"
                )
        return self._origin is not None

    def _complain(self, why: str) -> None:
        self.host.complain(
            ConfigurationError(f"suspects cannot be tried in cells and run alone in the pool instead: {why}")
        )

    @property
    def is_busy(self) -> bool:
        """Whether a suspect runs in a cell; not while its cell only opens."""
        return any(runner.has_begun for runner in self._running)

    def takes(self, request: Any) -> bool:
        """Whether ``request`` can be tried in a cell."""
        return not request.is_refused_by_cells and self.are_usable

    def admit(self, request: Any, *, first: bool = False) -> None:
        """Try ``request`` when its turn comes. It takes no prefetch credit from other messages meanwhile.

        Args:
            first: nothing else may run here until it has ended, so that another message would only wait
                for it, while other workers are free.
        """
        if not first:
            with suppress(AttributeError):  # a consumer without it
                self._loop.consumer.qos.increment_eventually()
        add = self._waiting.appendleft if first else self._waiting.append
        add((request, self._loop.epoch, not first))
        self._next()

    def hold(self, is_held: bool) -> None:
        """Begin no trial for the time being, or go on."""
        self._is_held = is_held
        self._next()

    def waiting(self) -> list[Any]:
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
        while self._waiting and self._free and not self._is_held and not self.host.shutdown.is_begun:
            request, epoch, is_credited = self._waiting.popleft()
            if epoch == self._loop.epoch and request in state.reserved_requests:
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
        if is_credited and epoch == self._loop.epoch:
            with suppress(AttributeError):
                self._loop.consumer.qos.decrement_eventually()

    def finished(self, runner: Runner) -> None:
        """Go on after a trial (on the event loop)."""
        _, epoch, is_credited = self._running.pop(runner)
        self._free.append(runner)
        self._take_credit(epoch, is_credited=is_credited)
        self._next()

    def refused(self, trial: Trial, error: Exception) -> None:
        """Give back a trial that no cell could be had for (on the event loop)."""
        if isinstance(error, CannotOpen):
            self._doubts_until = time.monotonic() + DOUBT
        self._complain(str(error) if isinstance(error, CannotOpen) else repr(error))
        trial.request.is_refused_by_cells = True
        self._give_back(trial.request)

    def open_cell(self) -> OpenCell:
        """Open a cell (in the thread of its runner)."""
        assert self._origin is not None
        patched_for = self.host.pool.name if real_thread_starter() is not None else ""
        setup = Setup(self._origin, self.host.prepare(), patched_for)
        return OpenCell(setup, self._settings.trial_memory_limit or 0, self.host.lease)

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
        limits = self.host.pool
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


class Runner:
    """The thread (a greenlet, where there are such) that tries one suspect after the other, in its own cell.

    What it hears goes to the event loop. Nobody else uses its cell, but for orders to end what runs there.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._host = cells.host
        self._loop = cells.host.loop
        self._trials: queue.Queue[Trial | None] = queue.Queue()
        self._trial: Trial | None = None
        self._thread: threading.Thread | None = None
        self._cell: OpenCell | None = None
        self._ending = False
        #: Whether the trial that it was given last was handed to its cell: it runs, or will in a moment.
        self.has_begun = False

    def take(self, trial: Trial) -> None:
        """Try this next."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-cell", daemon=True)
            self._thread.start()
        self._trial, self.has_begun = trial, False
        self._trials.put(trial)

    def terminate(self, pid: int, signum: int | None) -> None:
        """End what runs in the cell ``pid``, if that is its; SIGUSR1 interrupts it, as in a pool process."""
        cell, trial = self._cell, self._trial
        if cell is None or cell.pid != pid:
            return
        if signum == signal.SIGUSR1:
            cell.order(b"s")
        else:
            if trial is not None:
                trial.terminated_by = signum or signal.SIGTERM
            cell.order(b"k")

    def stop(self) -> None:
        """Let cell and trial end, now. Nothing is reported any more."""
        self._ending = True
        self._trials.put(None)
        if (cell := self._cell) is not None:
            cell.order(b"k")

    def join(self) -> None:
        """Wait for that."""
        if self._thread is not None:
            self._thread.join(2 * TICK)
            if (cell := self._cell) is not None and self._thread.is_alive():
                cell.abandon()

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
                self._report(partial(self._cells.refused, trial, error))
            self._report(partial(self._cells.finished, self))
        self._close(kill=True)

    def _report(self, call: Callable[[], Any]) -> None:
        if not self._ending:
            self._loop.call_in_loop(call)

    def _try(self, trial: Trial) -> None:
        for last in (False, True):
            self.has_begun = False
            try:
                cell = self._cell = self._cell or self._cells.open_cell()
                if trial.request.type not in cell.tasks:
                    raise CannotOpen(f"task {trial.request.type} is not there when the app is loaded anew")
                if trial.request.epoch != self._loop.epoch:
                    return  # its connection was lost meanwhile
                self.has_begun = True
                if self._ending or self._host.shutdown.is_begun:
                    return  # the worker leaves, and puts the message back
                cell.run(trial.arguments, trial.request.alone)
            except CannotOpen as error:
                if error.was_killed and not last:
                    continue
                self._report(partial(self._cells.refused, trial, error))
                return
            except OSError:  # the cell has ended since it was used last
                self._close(kill=True)
            else:
                if self._watch(trial, cell):
                    return
        raise CannotOpen("the cell ends before it begins a task")

    def _watch(self, trial: Trial, cell: OpenCell) -> bool:
        """Report what becomes of the trial; False when it never began."""
        while True:
            event = cell.next(min(TICK, trial.pause()))
            match event:
                case Death():
                    if trial.begun:
                        self._died(trial, event, cell)
                    self._close(kill=True)
                    return trial.begun
                case "accepted", pid, at:
                    trial.begin()
                    self._report(partial(trial.accepted, pid, at))
                case "result", ok, value, stays:
                    if not stays:
                        self._close()
                    self._report(partial(trial.ended if ok else trial.failed, value))
                    return True
            if trial.is_over() or trial.terminated_by:
                cell.kill()
            elif trial.is_soft_over():
                self._report(partial(trial.timed_out, True, trial.soft or 0.0))
                cell.order(b"s")

    def _died(self, trial: Trial, death: Death, cell: OpenCell) -> None:
        logger.warning("celery_poison: %s on trial: %s", trial.request.humaninfo(), death)
        evidence = self._host.explain(cell.pid, death)
        if death.was_killed and not trial.overdue and not trial.terminated_by:
            time.sleep(MOMENT)
            if not cell.is_watched:
                time.sleep(OUTLIVE - MOMENT)
        # On the event loop, where it is known whether it was revoked.
        self._report(lambda: trial.failed(info_of(error_of(trial, death, evidence))))
        if trial.overdue:
            self._report(partial(trial.timed_out, False, trial.hard or 0.0))

    def _close(self, *, kill: bool = False) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.close(kill=kill)
