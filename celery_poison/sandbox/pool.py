"""Where a worker tries its suspects: beside its pool, all at once, each in a cell.

To a request it looks like the pool. Everything here runs on the event loop.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_poison import procfs
from celery_poison.errors import ConfigurationError
from celery_poison.procfs import MemoryGroup
from celery_poison.sandbox.nursery import Nursery
from celery_poison.sandbox.process import CannotOpen
from celery_poison.sandbox.running import Trials
from celery_poison.sandbox.trial import Host, Order, Trial
from celery_poison.settings import Settings

#: Seconds in which no cell is opened after one could not be; and for which a nursery must have lived.
DOUBT = 60.0
#: What a cell is thought to take whose task was never seen in one, in bytes.
GUESS = 32 << 20
#: Bytes of what it shares with the nursery that a cell writes to, and so holds for itself.
WRITTEN = 8 << 20
#: Seconds after which a cell holds what it needs, unless its task was seen to take more than ``GUESS``.
GROWS = 2.0
#: By how much a trial gives way to others, and the seconds after which one that has waited does so no more.
NICENESS, PATIENCE = 5, 30.0


@dataclass(slots=True, eq=False)
class Suspect:
    """A request that was admitted.

    Attributes:
        epoch: number of its connection.
        is_credited: whether it gave its prefetch credit back.
        since: when it was admitted (``time.monotonic``).
        trial: once it has begun, or was begun before.
        slot: the index of its cell.
        begun_at: when its cell was asked for.
    """

    request: Any
    epoch: int
    is_credited: bool
    since: float
    trial: Trial | None = None
    slot: int = 0
    begun_at: float = 0.0

    @property
    def is_alone(self) -> bool:
        """Whether no other cell may be beside its own."""
        return self.trial is not None and self.trial.was_pressed


class Cells:
    """The cells of one worker.

    Args:
        nursery: forks them; or why there is none.
    """

    def __init__(self, host: Host, settings: Settings, nursery: Nursery | str) -> None:
        self.host = host
        self._loop = host.loop
        self._settings = settings
        self._give_back: Callable[[Any], Any] = lambda request: None
        self._nursery: Nursery | None = None
        self._why_none = ""
        if isinstance(nursery, Nursery):
            self._nursery = nursery
        else:
            self._why_none = nursery
        self._born_at = time.monotonic()
        slots = min(host.pool.slots, settings.trial_cells or host.pool.slots)
        self._free_slots = list(range(slots))
        self._running: dict[Trial, Suspect] = {}
        self._waiting: deque[Suspect] = deque()
        self._number = host.pool.slots
        #: The most that cells of a task were seen to take, in bytes.
        self._took: dict[str, int] = {}
        self._memory = MemoryGroup()
        self._trials = Trials(host, self)
        self._trials.adopt(self._nursery)
        #: No cell could be had, and none should be tried before (``time.monotonic``).
        self._doubts_until = 0.0
        self._beginning: Suspect | None = None
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
        if self._nursery is None:
            self._complain(self._why_none)
        return self._nursery is not None

    def _complain(self, why: str) -> None:
        self.host.complain(
            ConfigurationError(f"suspects cannot be tried in cells and run alone in the pool instead: {why}")
        )

    @property
    def is_busy(self) -> bool:
        """Whether a suspect runs in a cell, or will in a moment."""
        return bool(self._running)

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
        add(Suspect(request, self._loop.epoch, not first, time.monotonic()))
        self.look()

    def hold(self, is_held: bool) -> None:
        """Begin no trial for the time being, or go on."""
        self._is_held = is_held
        self.look()

    @property
    def is_waited_for(self) -> bool:
        """Whether a suspect has been admitted and not begun."""
        return bool(self._waiting)

    def waiting(self) -> list[Any]:
        """Return whoever has been admitted and not begun."""
        return [suspect.request for suspect in self._waiting]

    def look(self) -> None:
        """Begin what can begin. With greenlets one may end meanwhile, and come here too."""
        if self._is_choosing:
            return
        self._is_choosing = True
        try:
            while self._waiting and self._may_begin(self._waiting[0]):
                self._begin(self._waiting.popleft())
        finally:
            self._is_choosing = False

    def _may_begin(self, suspect: Suspect) -> bool:
        if self._is_held or self.host.shutdown.is_begun:
            return False
        if not self.are_usable or not self._running:
            return True
        beside = [suspect, *self._running.values()]
        return bool(self._free_slots) and not any(each.is_alone for each in beside) and self._fits(suspect)

    def _fits(self, suspect: Suspect) -> bool:
        """Whether memory bears one more, as far as cells of its task have shown what they take."""
        promised = sum(map(self._missing, self._running.values()))
        return self._memory.room() - promised >= self._need(suspect.request.type)

    def _need(self, task: str) -> int:
        return self._took.get(task, GUESS) + WRITTEN

    def _missing(self, suspect: Suspect) -> int:
        """Return the bytes that a running trial will still take."""
        need, pid = self._need(suspect.request.type), suspect.request.worker_pid
        if not pid or time.monotonic() - suspect.begun_at < GROWS:
            return need
        if need <= GUESS + WRITTEN or self._nursery is None:
            return 0
        return max(0, need + procfs.resident(self._nursery.pid) - procfs.resident(pid))

    def _begin(self, suspect: Suspect) -> None:
        request = suspect.request
        is_here = request in state.reserved_requests or request in state.active_requests
        if suspect.epoch != self._loop.epoch or not is_here:
            self._take_credit(suspect)  # its connection was lost, or it was revoked
        elif not self.are_usable:
            self._refuse(suspect)
        elif suspect.trial is not None:
            self._begin_trial(suspect, suspect.trial)
        else:
            self._beginning = suspect
            with suppress(TaskRevokedError):
                request.execute_using_pool(self)
            self._beginning = None
            if suspect.trial is None:  # it was revoked, or has expired
                self._take_credit(suspect)

    def _begin_trial(self, suspect: Suspect, trial: Trial) -> None:
        has_waited = time.monotonic() - suspect.since > PATIENCE
        suspect.slot, suspect.begun_at = self._free_slots.pop(0), time.monotonic()
        self._number += 1
        self._running[trial] = suspect
        limit = self._settings.trial_memory_limit or 0
        self._trials.begin(trial, Order(suspect.slot, self._number, limit, 0 if has_waited else NICENESS))

    def _take_credit(self, suspect: Suspect) -> None:
        if suspect.is_credited and suspect.epoch == self._loop.epoch:
            with suppress(AttributeError):
                self._loop.consumer.qos.decrement_eventually()

    # --- what becomes of a trial (on the event loop) ---------------------------------------------------

    def finished(self, trial: Trial) -> None:
        """Go on after a cell has ended."""
        suspect = self._running.pop(trial, None)
        if suspect is None:
            return
        self._free_slots = sorted([*self._free_slots, suspect.slot])
        if trial.taken:
            before = self._took.get(suspect.request.type, 0)
            self._took[suspect.request.type] = max(trial.taken, before * 9 // 10)
        if suspect not in self._waiting:
            self._take_credit(suspect)
        self.look()

    def again(self, trial: Trial) -> None:
        """Try once more what was ended, or has not begun, through no fault of its own."""
        trial.begun = trial.is_pressed = False
        self._waiting.appendleft(self._running[trial])

    def refused(self, trial: Trial, error: Exception) -> None:
        """Give back a trial that no cell could be had for."""
        if isinstance(error, (CannotOpen, OSError)):
            self._doubts_until = time.monotonic() + DOUBT
        self._complain(str(error) if isinstance(error, CannotOpen) else repr(error))
        trial.request.is_refused_by_cells = True
        self._give_back(trial.request)

    def _refuse(self, suspect: Suspect) -> None:
        suspect.request.is_refused_by_cells = True
        self._take_credit(suspect)
        self._give_back(suspect.request)

    def nursery_ended(self) -> None:
        """Fork another, where processes of the pool are forked as well; do without otherwise."""
        if self._nursery is None:
            return
        self._nursery.end()
        self._nursery, lived = None, time.monotonic() - self._born_at
        self._why_none = "the process that forks them has ended"
        if not self.host.pool.contained and lived > DOUBT:
            try:
                self._nursery, self._born_at = Nursery.forked(self.host.app), time.monotonic()
            except OSError as error:
                self._why_none = f"no process can be forked: {error}"
        self._trials.adopt(self._nursery)
        self.look()

    # --- as the pool, for the request whose turn it is -------------------------------------------------

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
        suspect, limits = self._beginning, self.host.pool
        assert suspect is not None
        suspect.trial = Trial(
            suspect.request,
            target,
            args,
            accept_callback,
            timeout_callback,
            callback,
            error_callback,
            (soft_timeout or limits.soft) if limits.enforces_soft else None,
            (timeout or limits.hard) if limits.enforces_hard else None,
        )
        self._begin_trial(suspect, suspect.trial)

    def terminate_job(self, pid: int, signum: int | None = None) -> None:
        """End what runs in the cell ``pid``; SIGUSR1 interrupts it, as in a pool process."""
        running = self._trials.find(pid)
        if running is None:
            return
        if signum == signal.SIGUSR1:
            running.cell.order(b"s")
        else:
            running.trial.terminated_by = signum or signal.SIGTERM
            self._trials.wake()

    def end(self) -> None:
        """End cells, trials and the nursery, now. Nothing is reported any more."""
        self._waiting.clear()
        self._trials.end()
        if self._nursery is not None:
            self._nursery.end()
            self._nursery = None
