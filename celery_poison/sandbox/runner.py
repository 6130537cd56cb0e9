"""The thread (a greenlet, where there are such) that talks to one cell of a worker.

It tries one suspect after the other. What it hears goes to the event loop.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_poison.causes import Evidence
from celery_poison.sandbox.process import CannotOpen, OpenCell
from celery_poison.sandbox.trial import Death, Host, Trial, error_of, info_of

logger = get_logger("celery_poison")

#: Seconds after which a cell is closed that nobody needs.
IDLE = 30.0
#: Seconds for which the thread waits for a cell at a time.
TICK = 1.0
#: Seconds for which a worker must outlive a cell that was killed, if its watcher does so too. Who kills all
#: processes of a worker does not leave out the one next to the cell for so long.
MOMENT = 0.02
#: Seconds for which it must outlive both: a busy machine may interrupt who kills all of them for so long.
OUTLIVE = 0.5


class Runner:
    """The only one that uses its cell, but for orders to end what runs there.

    Args:
        open_cell: opens it; raises CannotOpen.
        refused: takes, on the event loop, a trial that no cell could be had for, and why.
        finished: is called there after every trial.
    """

    def __init__(
        self,
        host: Host,
        open_cell: Callable[[], OpenCell],
        refused: Callable[[Trial, Exception], Any],
        finished: Callable[[Runner], Any],
    ) -> None:
        self._host = host
        self._open_cell = open_cell
        self._refused = refused
        self._finished = finished
        self._trials: queue.Queue[Trial | None] = queue.Queue()
        self._trial: Trial | None = None
        self._thread: threading.Thread | None = None
        self._cell: OpenCell | None = None
        self._ending = False
        #: Whether the trial that it was given last was handed to its cell: it runs, or will in a moment.
        self.has_begun = False

    # --- on the event loop ---------------------------------------------------------------------

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
                self._report(partial(self._refused, trial, error))
            self._report(partial(self._finished, self))
        self._close(kill=True)

    def _report(self, call: Callable[[], Any]) -> None:
        if not self._ending:
            self._host.call_in_loop(call)

    def _try(self, trial: Trial) -> None:
        for last in (False, True):
            self.has_begun = False
            try:
                cell = self._cell = self._cell or self._open_cell()
                if trial.request.type not in cell.tasks:
                    raise CannotOpen(f"task {trial.request.type} is not there when the app is loaded anew")
                if trial.request.epoch != self._host.epoch:
                    return  # its connection was lost meanwhile
                self.has_begun = True
                if self._ending or self._host.stopping:
                    return  # the worker leaves, and puts the message back
                cell.run(trial.arguments, trial.request.alone)
            except CannotOpen as error:
                if error.was_killed and not last:
                    continue
                self._report(partial(self._refused, trial, error))
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
        self._report(partial(_fail, trial, death, evidence))
        if trial.overdue:
            self._report(partial(trial.timed_out, False, trial.hard or 0.0))

    def _close(self, *, kill: bool = False) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.close(kill=kill)


def _fail(trial: Trial, death: Death, evidence: Evidence) -> None:
    # Here, on the event loop, it is known whether it was revoked.
    trial.failed(info_of(error_of(trial, death, evidence)))
