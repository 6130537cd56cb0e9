"""Where a worker tries its suspects: beside its pool, all at once, each in a cell.

To a request it looks like the pool. Everything here runs on the event loop.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.exceptions import TaskRevokedError
from celery.utils.log import get_logger
from celery.worker import state

from celery_poison.basics import procfs
from celery_poison.basics.procfs import MemoryGroup
from celery_poison.cells.nursery import Nursery
from celery_poison.cells.running import Trials
from celery_poison.cells.trial import Host, Trial
from celery_poison.errors import ConfigurationError

logger = get_logger("celery_poison")

#: So many suspects run at once at most, unless a setting says so: each takes a process, and some MiB.
MOST = 50
#: Seconds for which a suspect waits here; then the ledger keeps it, for whichever worker has a cell first.
PARK_AFTER = 2.0
#: Seconds for which a nursery must have lived whose place another one takes.
LIVED = 60.0
#: What a cell is thought to take whose task was never seen in one, in bytes.
GUESS = 32 << 20
#: Bytes of what it shares with the nursery that a cell writes to, and so holds for itself.
WRITTEN = 8 << 20
#: Seconds after which a cell holds what it needs, unless its task was seen to take more than ``GUESS``.
GROWS = 2.0


class Cells:
    """The cells of one worker.

    Args:
        nursery: forks them; or why there is none: empty where no trials in cells are wanted.

    Attributes:
        waiting: what has been admitted and not begun.
        room: how many suspects more could begin, when that was looked at last; for any thread.
        memory: of the container or machine, which all cells share.
    """

    def __init__(self, host: Host, nursery: Nursery | str) -> None:
        self.host = host
        self._loop = host.loop
        self._give_back: Callable[[Any], Any] = lambda request: None
        self._nursery, self._born_at = nursery, time.monotonic()
        self._free_slots = list(range(min(host.pool.slots, host.settings.trial_cells or MOST)))
        self._running: set[Trial] = set()
        self.waiting: deque[Trial] = deque()
        self.room = len(self._free_slots)
        #: The most that cells of a task were seen to take, in bytes.
        self._took: dict[str, int] = {}
        self.memory = MemoryGroup()
        self._trials = Trials(host, self)
        self._beginning: Trial | None = None
        self._pauses_until = 0.0  # ``time.monotonic``, after a cell could not be had
        self._must_wait = self._is_choosing = False

    def attach(self, give_back: Callable[[Any], Any]) -> None:
        """Serve the present consumer; ``give_back`` takes a request that no cell can try."""
        self._give_back = give_back
        self.make_wait(False)  # who asked for it is gone

    @property
    def are_usable(self) -> bool:
        """Whether suspects can be tried in cells at all, as far as it is known."""
        if isinstance(self._nursery, Nursery) and self._nursery.has_ended():
            self._nursery.end()  # so that it is waited for
            self._nursery = self._next_nursery()
        if isinstance(self._nursery, str) and self._nursery:
            self._complain(self._nursery)
        return self.can_be

    @property
    def can_be(self) -> bool:
        """Whether there are cells here, as far as is known without a look at the nursery; for any thread."""
        return isinstance(self._nursery, Nursery)

    def _next_nursery(self) -> Nursery | str:
        """Fork another where processes of the pool are forked as late, unless the last one hardly lived."""
        born_at, self._born_at = self._born_at, time.monotonic()
        if not self.host.pool.contained and self._born_at - born_at > LIVED:
            with suppress(OSError):
                return Nursery.forked(self._loop.consumer.app, self.host.worker)
        return "the process that forks them has ended"

    def _complain(self, why: str) -> None:
        self.host.complain(
            ConfigurationError(f"suspects cannot be tried in cells and run alone in the pool instead: {why}")
        )

    @property
    def lacks(self) -> str:
        """Say how this worker's trials are less than they might be; empty: in no way. For any thread."""
        nursery = self._nursery
        if isinstance(nursery, str):
            return nursery and f"suspects run alone in its pool, not in cells: {nursery}"
        return nursery.has and f"cells load the app anew: it has {nursery.has} before any task"

    @property
    def is_busy(self) -> bool:
        """Whether a suspect runs in a cell, or will in a moment."""
        return bool(self._running)

    def takes(self, request: Any) -> bool:
        """Whether ``request`` can be tried in a cell."""
        return not request.is_refused_by_cells and self.are_usable

    def admit(self, request: Any, *, first: bool = False) -> None:
        """Try ``request`` when its turn comes. It takes no prefetch credit from other messages meanwhile.

        Unless it is ``first``: nothing else may run here until it has ended, and other workers are free.
        """
        if not first:
            with suppress(AttributeError):  # a consumer without it
                self._loop.consumer.qos.increment_eventually()
        add = self.waiting.appendleft if first else self.waiting.append
        add(Trial(request, self._loop.epoch, is_alone=first))
        self.look()

    def make_wait(self, must_wait: bool) -> None:
        """Begin no trial for the time being, or go on."""
        self._must_wait = must_wait
        self.look()

    def look(self) -> None:
        """Begin what can begin. With greenlets one may end meanwhile, and come here too."""
        if self._is_choosing:
            return
        self._is_choosing = True
        try:
            while self.waiting and self._may_begin(self.waiting[0]):
                self._begin(self.waiting.popleft())
            self._park_late()
            self.room = 0 if self.waiting or self._must_wait or not self._fits("") else len(self._free_slots)
        finally:
            self._is_choosing = False

    def _park_late(self) -> None:
        """Have the ledger keep what has waited here for too long, unless a pool was emptied for it."""
        latest = time.monotonic() - PARK_AFTER
        for trial in () if self.host.shutdown.is_begun else tuple(self.waiting):
            if trial.since < latest and trial.is_credited and not trial.callbacks:
                self.waiting.remove(trial)
                self._take_credit(trial)
                if self._is_here(trial):
                    trial.request.wait_in_ledger()

    def _may_begin(self, trial: Trial) -> bool:
        if self._must_wait or self.host.shutdown.is_begun or time.monotonic() < self._pauses_until:
            return False
        return not self.are_usable or self._fits(trial.request.type, trial)  # it goes to the pool, or fits

    def _fits(self, task: str, *beside: Trial) -> bool:
        """Whether one more may run, and memory bears it, as far as cells have shown what their tasks take."""
        if not self._running:
            return True
        if not self._free_slots or any(each.is_alone for each in (*beside, *self._running)):
            return False
        return self.memory.room() >= self._need(task) + sum(map(self._missing, self._running))

    def _missing(self, trial: Trial) -> int:
        """Return the bytes that a running trial will still take."""
        need = self._need(trial.request.type)
        if not trial.begun or time.monotonic() - trial.since < GROWS:
            return need
        if need <= GUESS + WRITTEN or isinstance(self._nursery, str):
            return 0
        return max(0, need + procfs.resident(self._nursery.pid) - procfs.resident(trial.pid))

    def _need(self, task: str) -> int:
        return self._took.get(task, GUESS) + WRITTEN

    def _is_here(self, trial: Trial) -> bool:
        """Whether its connection is there still, and it was not revoked."""
        is_known = trial.request in state.reserved_requests or trial.request in state.active_requests
        return trial.epoch == self._loop.epoch and is_known

    def _begin(self, trial: Trial) -> None:
        is_here = self._is_here(trial)
        if is_here and not self.are_usable:
            return self._refuse(trial)
        if is_here and not trial.callbacks:
            self._beginning = trial
            try:
                with suppress(TaskRevokedError):
                    trial.request.execute_using_pool(self)
            except Exception as error:  # a header that cannot be read, or a request class of the user's
                return self._refuse(trial, repr(error))
        if is_here and trial.callbacks:
            self._fork(trial)
        else:  # it was revoked, has expired, or went back
            self._take_credit(trial)

    def _fork(self, trial: Trial) -> None:
        trial.slot, trial.since = self._free_slots.pop(0), time.monotonic()
        self._running.add(trial)
        assert isinstance(self._nursery, Nursery)
        try:
            self._trials.start()
            trial.open(self.host, self._nursery, self._trials.report)
        except OSError as error:
            self.again(trial, repr(error))
        except Exception as error:
            self._refuse(trial, repr(error))
        else:
            self._trials.hear(trial)

    def _take_credit(self, trial: Trial) -> None:
        if trial.is_credited and trial.epoch == self._loop.epoch:
            with suppress(AttributeError):
                self._loop.consumer.qos.decrement_eventually()

    # --- what becomes of a trial -----------------------------------------------------------------------

    def finished(self, trial: Trial) -> None:
        """Go on after a cell has ended."""
        self._leave(trial)
        self._take_credit(trial)
        self.look()

    def again(self, trial: Trial, why: str = "") -> None:
        """Try once more what ended through no fault of its own: alone, or in a second."""
        why = why or trial.why_short
        self._leave(trial)
        if trial.is_pressed or not trial.was_short:
            self.waiting.appendleft(trial)
            if trial.is_pressed:
                trial.is_alone, how = True, "alone: memory is short"
            else:
                trial.was_short, how = True, f"in a second: {why}"
                self._pauses_until = time.monotonic() + 1.0
            logger.warning("celery_poison: %s is tried again, %s", trial.request.humaninfo(), how)
        else:
            self._refuse(trial, why)
        self.look()

    def _leave(self, trial: Trial) -> None:
        if trial in self._running:
            self._running.remove(trial)
            self._free_slots = sorted([*self._free_slots, trial.slot])
        if isinstance(self._nursery, Nursery) and trial.death is not None and trial.death.peak:
            taken, task = trial.death.peak - procfs.resident(self._nursery.pid), trial.request.type
            self._took[task] = max(taken, self._took.get(task, 0) * 9 // 10)

    def _refuse(self, trial: Trial, why: str = "") -> None:
        """Give back a trial that no cell could be had for."""
        if why:
            self._complain(why)
        self._leave(trial)
        self._take_credit(trial)
        trial.request.is_refused_by_cells = True
        self._give_back(trial.request)

    # --- as the pool, for the request whose turn it is -------------------------------------------------

    def apply_async(self, target: Any, args: tuple[Any, ...], **options: Any) -> None:
        trial, limits = self._beginning, self.host.pool
        assert trial is not None
        soft, hard = options.pop("soft_timeout", None), options.pop("timeout", None)
        trial.target, trial.arguments, trial.callbacks = target, args, options
        # What a pool ignores is ignored in a cell too: the task may rely on it.
        trial.soft = (soft or limits.soft) if limits.name == "prefork" else None
        trial.hard = (hard or limits.hard) if limits.name in ("prefork", "gevent") else None

    def terminate_job(self, pid: int, signum: int | None = None) -> None:
        """End what runs in the cell ``pid``; SIGUSR1 interrupts it, as in a pool process."""
        for trial in self._running:
            if trial.pid == pid and signum == signal.SIGUSR1:
                trial.interrupt()
            elif trial.pid == pid:
                trial.terminated_by = signum or signal.SIGTERM
                self._trials.wake()

    def end(self) -> None:
        """End cells, trials and the nursery, now. Nothing is reported any more."""
        self.waiting.clear()
        self._trials.end()
        if isinstance(self._nursery, Nursery):
            self._nursery.end()
            self._nursery = "the worker leaves"
