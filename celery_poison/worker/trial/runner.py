"""The thread (a greenlet, where there are such) that talks to the cell of a worker.

It tries one group of suspects after the other, mostly one suspect each. What it hears goes to the event loop.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_poison.errors import ConfigurationError
from celery_poison.evidence import Evidence
from celery_poison.forking import real_thread_starter
from celery_poison.worker.running.deathbed import LastWords
from celery_poison.worker.trial.ends import error_of
from celery_poison.worker.trial.frames import info_of
from celery_poison.worker.trial.group import Group, Trial
from celery_poison.worker.trial.loading import Cellmate, Origin
from celery_poison.worker.trial.opened import CannotOpen, Death, OpenCell

if TYPE_CHECKING:
    from celery_poison.worker.ending.request import GuardedRequest
    from celery_poison.worker.runtime import Runtime

logger = get_logger("celery_poison")

#: Seconds after which a cell is closed that nobody needs.
IDLE = 30.0
#: Seconds in which no cell is opened after one could not be.
DOUBT = 60.0
#: Seconds for which the thread waits for a cell at a time.
TICK = 1.0
#: Seconds for which a worker must outlive a cell that was killed, if its watcher does so too. Who kills all
#: processes of a worker does not leave out the one next to the cell for so long.
MOMENT = 0.02
#: Seconds for which it must outlive both: a busy machine may interrupt who kills all of them for so long.
OUTLIVE = 0.5


class Runner:
    """The only one that uses the cell, but for orders to end what runs there.

    Args:
        pool: the name of the module of the worker's pool.
        refused: takes, on the event loop, a request that could be tried in no cell.
        finished: is called there after every group.

    Attributes:
        origin: where the app comes from; must be set before the first trial.
        doubts_until: no cell could be had, and none should be tried before (``time.monotonic``).
    """

    def __init__(
        self,
        runtime: Runtime,
        pool: str,
        refused: Callable[[GuardedRequest], Any],
        finished: Callable[[], Any],
    ) -> None:
        self.origin: Origin | None = None
        self.doubts_until = 0.0
        self._runtime = runtime
        self._pool = pool
        self._refused = refused
        self._finished = finished
        self._groups: queue.Queue[Group | None] = queue.Queue()
        self._group: Group | None = None
        self._thread: threading.Thread | None = None
        self._cell: OpenCell | None = None
        self._ending = False

    # --- on the event loop ---------------------------------------------------------------------

    def take(self, group: Group) -> None:
        """Try these next."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-cells", daemon=True)
            self._thread.start()
        self._group = group
        self._groups.put(group)

    def terminate(self, pid: int, signum: int | None) -> None:
        """End what runs in the cell ``pid``; SIGUSR1 interrupts it, as in a pool process."""
        cell, group = self._cell, self._group
        if cell is None or cell.pid != pid:
            return
        if signum == signal.SIGUSR1:
            cell.order(b"s")
        else:
            if group is not None:
                group.terminated_by = signum or signal.SIGTERM
            cell.order(b"k")

    def end(self) -> None:
        """End cell and trials, now. Nothing is reported any more."""
        self._ending = True
        self._groups.put(None)
        if (cell := self._cell) is not None:
            cell.order(b"k")
        if self._thread is not None:
            self._thread.join(2 * TICK)
            if cell is not None and self._thread.is_alive():
                cell.abandon()

    def complain(self, why: str) -> None:
        """Say why there are no cells."""
        self._runtime.complain(
            ConfigurationError(f"suspects cannot be tried in cells and run alone in the pool instead: {why}")
        )

    # --- in the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._ending:
            try:
                group = self._groups.get(timeout=IDLE)
            except queue.Empty:
                self._close()
                continue
            if group is None:
                break
            try:
                self._try(group)
            except Exception as error:
                if self._ending:
                    break
                self._close(kill=True)
                self._refuse([*group.left.values()], error)
            self._report(self._finished)
        self._close(kill=True)

    def _report(self, call: Callable[[], Any]) -> None:
        if not self._ending:
            self._runtime.bridge.call(call)

    def _try(self, group: Group) -> None:
        for last in (False, True):
            try:
                cell = self._opened()
                self._leave_out(group, cell)
                if not group.trials:
                    return
                cell.run([trial.arguments for trial in group.trials], group.trials[0].request.alone)
            except CannotOpen as error:
                if error.was_killed and not last:
                    continue
                self._refuse(group.trials, error)
                return
            except OSError:  # the cell has ended since it was used last
                self._close(kill=True)
            else:
                if self._watch(group, cell):
                    return
            if last:
                raise CannotOpen("the cell ends before it begins a task")

    def _opened(self) -> OpenCell:
        cell = self._cell
        if cell is None:
            runtime = self._runtime
            assert self.origin is not None
            about = Cellmate(
                self.origin,
                runtime.worker,
                runtime.plugin.ledger_url,
                runtime.settings.namespace,
                runtime.secret,
                runtime.deathbed.path if runtime.deathbed else "",
                self._pool if real_thread_starter() is not None else "",
            )
            limit = runtime.settings.trial_memory_limit or 0
            cell = self._cell = OpenCell(about, limit, runtime.lease.fd)
        return cell

    def _leave_out(self, group: Group, cell: OpenCell) -> None:
        """Refuse whoever's task is not in the cell, and drop whoever's connection was lost meanwhile."""
        strangers = [trial for trial in group.trials if trial.request.type not in cell.tasks]
        if strangers:
            name = strangers[0].request.type
            self._refuse(strangers, CannotOpen(f"task {name} is not there when the app is loaded anew"))
        kept = [trial for trial in group.trials if trial.request.type in cell.tasks]
        group.keep([trial for trial in kept if trial.request.epoch == self._runtime.epoch])

    def _watch(self, group: Group, cell: OpenCell) -> bool:
        """Report what becomes of the trials; False when they never began."""
        while True:
            event = cell.next(min(TICK, group.pause()))
            match event:
                case Death():
                    if group.begun:
                        self._died(group, event, cell)
                    self._close(kill=True)
                    return group.begun
                case "accepted", pid, at:
                    group.begin()
                    for trial in group.trials:
                        self._report(partial(trial.accepted, pid, at))
                case "result", number, ok, value, stays:
                    trial = group.left.pop(number)
                    if not stays and not group.left:
                        self._close()
                    self._report(partial(trial.ended if ok else trial.failed, value))
                    if not group.left:
                        return True
            self._enforce(group, cell)

    def _enforce(self, group: Group, cell: OpenCell) -> None:
        if group.is_over() or group.terminated_by:
            cell.kill()
        elif group.is_soft_over():
            trial = group.trials[0]
            self._report(partial(trial.timed_out, True, trial.soft or 0.0))
            cell.order(b"s")

    def _died(self, group: Group, death: Death, cell: OpenCell) -> None:
        logger.warning("celery_poison: %s on trial: %s", group.name, death)
        deathbed = self._runtime.deathbed
        words = deathbed.read(cell.pid) if deathbed else LastWords()
        evidence = death.evidence(words, self._runtime.exits.limit_kb)
        self._runtime.exits.note(cell.pid, death.exit_code, death.peak // 1024, words)
        if death.was_killed and not group.overdue and not group.terminated_by:
            time.sleep(MOMENT)
            if not cell.is_watched:
                time.sleep(OUTLIVE - MOMENT)
        for number, trial in group.left.items():
            self._report(partial(_fail, trial, number, group, death, evidence))
        if group.overdue and not group.is_shared:
            trial = group.trials[0]
            self._report(partial(trial.timed_out, False, trial.hard or 0.0))

    def _refuse(self, trials: list[Trial], error: Exception) -> None:
        if isinstance(error, CannotOpen):
            self.doubts_until = time.monotonic() + DOUBT
        self.complain(str(error) if isinstance(error, CannotOpen) else repr(error))
        for trial in trials:
            trial.request.is_refused_by_cells = True
            self._report(partial(self._refused, trial.request))

    def _close(self, *, kill: bool = False) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.close(kill=kill)


def _fail(trial: Trial, number: int, group: Group, death: Death, evidence: Evidence) -> None:
    # Here, on the event loop, it is known who was revoked.
    trial.failed(info_of(error_of(number, group, death, evidence)))
