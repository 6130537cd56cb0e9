"""What runs in cells: one thread (a greenlet, where there are such) hears all cells of a worker.

It asks the nursery for them, keeps time limits, and tells the event loop how each trial ended.
"""

from __future__ import annotations

import _socket
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from celery.utils.log import get_logger

from celery_poison.procfs import MemoryGroup
from celery_poison.sandbox.nursery import Nursery
from celery_poison.sandbox.process import ENDING, CannotOpen, OpenCell
from celery_poison.sandbox.trial import Host, Job, Order, Trial, error_of, info_of
from celery_poison.sandbox.watcher import SPEED

logger = get_logger("celery_poison")

#: Seconds in which a forked process must be ready to run a task.
SETTING_UP = 120.0
#: The longest pause of the thread while nothing runs, the longest while something does, and the shortest.
IDLE, TICK, SHORTEST = 60.0, 1.0, 0.01
#: Seconds for which a worker must outlive a cell that was killed, if its watcher does so too. Who kills all
#: processes of a worker does not leave out the one next to the cell for so long.
MOMENT = 0.02
#: Seconds for which it must outlive both: a busy machine may interrupt who kills all of them for so long.
OUTLIVE = 0.5
#: Seconds in which a cell that says nothing more should have ended by itself.
EXITING = 1.0
#: Seconds between two trials that are ended since memory is short: the first gives back what it held.
RELIEF = 0.25

_NEVER = float("inf")


class Ended(Protocol):
    """Who hears what becomes of trials, on the event loop."""

    def finished(self, trial: Trial) -> None:
        """Its cell has ended."""

    def again(self, trial: Trial) -> None:
        """It is to be tried again, through no fault of its own."""

    def refused(self, trial: Trial, error: Exception) -> None:
        """No cell could be had for it."""

    def nursery_ended(self) -> None: ...

    @property
    def is_waited_for(self) -> bool: ...

    def look(self) -> None: ...


class Running:
    """One trial in its cell."""

    def __init__(self, trial: Trial, cell: OpenCell, host: Host) -> None:
        self.trial, self.cell, self._host = trial, cell, host
        self.has_result = self._is_killed = False
        self._ready_by = time.monotonic() + SETTING_UP
        self._abandon_at = self._kill_at = self._told_at = _NEVER

    def hear(self, report: Callable[[Callable[[], Any]], None]) -> None:
        """Pass on what the cell has said."""
        for word, *facts in self.cell.hear():
            if word == "accepted":
                self.trial.begin()
                self.cell.order(b"b")
                report(partial(self.trial.accepted, *facts))
            else:
                ok, value = facts
                self.has_result, self._kill_at = True, time.monotonic() + ENDING
                report(partial(self.trial.ended if ok else self.trial.failed, value))
        if self.cell.is_silent and self._kill_at == _NEVER:
            self._kill_at = time.monotonic() + EXITING
        if self.cell.death is not None and self._told_at == _NEVER:
            self._told_at = time.monotonic() + self._patience()

    def _patience(self) -> float:
        """Return for how long it is not believed that the suspect ended its cell."""
        trial, death = self.trial, self.cell.death
        is_ours = trial.overdue or trial.terminated_by or trial.is_pressed
        if death is None or not death.was_killed or self.has_result or not trial.begun or is_ours:
            return 0.0
        return MOMENT

    def kill(self) -> None:
        if not self._is_killed:
            self._is_killed, self._abandon_at = True, time.monotonic() + ENDING
            self.cell.order(b"k")

    def tick(self, report: Callable[[Callable[[], Any]], None]) -> bool:
        """Keep limits; return whether it is over, and may be told of."""
        now, trial = time.monotonic(), self.trial
        if self.cell.death is not None:
            if now < self._told_at:
                return False
            if self._told_at and self._patience() and not self.cell.is_watched and not self._is_killed:
                self._is_killed, self._told_at = True, now + OUTLIVE - MOMENT
                return False
            return True
        if not self.has_result and trial.begun:
            if trial.is_over() or trial.terminated_by:
                self.kill()
            elif trial.is_soft_over():
                report(partial(trial.timed_out, True, trial.soft or 0.0))
                self.cell.order(b"s")
        if now > self._kill_at or (not trial.begun and now > self._ready_by):
            self.kill()
        if now > self._abandon_at:  # its watcher does not obey: a suspect may have stopped it
            self.cell.abandon()
            self._abandon_at = now + ENDING
        return False

    def pause(self) -> float:
        """Return the seconds until it must be looked at."""
        limits = self.trial.pause() if self.trial.begun and not self.has_result else TICK
        due = min(self._abandon_at, self._kill_at, self._told_at)
        return min(limits, due - time.monotonic())

    def tell(self, report: Callable[[Callable[[], Any]], None], hears: Ended) -> None:
        """Report how it ended."""
        trial, death = self.trial, self.cell.death
        assert death is not None
        trial.taken = death.taken
        if self.has_result:
            pass
        elif not trial.begun:
            if trial.tries > 1 and not trial.terminated_by:
                report(
                    partial(
                        hears.refused, trial, CannotOpen(f"a forked process ends before it begins: {death}")
                    )
                )
            else:
                report(partial(hears.again, trial))
        elif (trial.is_pressed or death.why == "pressed") and not trial.was_pressed:
            logger.warning(
                "celery_poison: %s is tried again, alone: memory is short", trial.request.humaninfo()
            )
            trial.was_pressed = True
            report(partial(hears.again, trial))
        else:
            self._died(report)
        report(partial(hears.finished, trial))

    def _died(self, report: Callable[[Callable[[], Any]], None]) -> None:
        trial, death = self.trial, self.cell.death
        assert death is not None
        logger.warning("celery_poison: %s on trial: %s", trial.request.humaninfo(), death)
        evidence = self._host.explain(self.cell.pid, death)
        # On the event loop, where it is known whether it was revoked.
        report(lambda: trial.failed(info_of(error_of(trial, death, evidence))))
        if trial.overdue:
            report(partial(trial.timed_out, False, trial.hard or 0.0))


class Trials:
    """All that runs in cells of one worker, and the thread that hears it."""

    def __init__(self, host: Host, hears: Ended) -> None:
        self._host, self._hears = host, hears
        self._new: deque[tuple[Trial, Order]] = deque()
        self._running: list[Running] = []
        self._nursery: Nursery | None = None
        self._heard: Nursery | None = None
        self._selector = selectors.DefaultSelector()
        self._woken, self._wakes = _socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None
        self._ending = False
        self._memory = MemoryGroup()
        self._relieved_at = 0.0

    def adopt(self, nursery: Nursery | None) -> None:
        """Use this one from now on."""
        self._nursery = nursery
        self.wake()

    def begin(self, trial: Trial, order: Order) -> None:
        """Try this."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-cells", daemon=True)
            self._thread.start()
        trial.tries += 1
        self._new.append((trial, order))
        self.wake()

    def wake(self) -> None:
        with suppress(OSError):  # full: it is being woken up already
            self._wakes.send(b"!")

    def find(self, pid: int) -> Running | None:
        return next((each for each in list(self._running) if each.cell.pid == pid), None)

    def end(self) -> None:
        """End all cells, now. Nothing is reported any more."""
        self._ending = True
        self.wake()
        if self._thread is not None:
            self._thread.join(3 * TICK)

    def _report(self, call: Callable[[], Any]) -> None:
        if not self._ending:
            self._host.loop.call_in_loop(call)

    def _work(self) -> None:
        while not self._ending:
            try:
                self._step()
            except Exception as error:  # must go on: others run
                self._host.complain(error)
                time.sleep(SHORTEST)
        deadline = time.monotonic() + 2 * TICK
        for each in self._running:
            each.kill()
        while self._running and time.monotonic() < deadline:
            self._hear()
            self._running = [each for each in self._running if each.cell.death is None]
        for each in self._running:
            each.cell.abandon()

    def _step(self) -> None:
        self._hear()
        self._open()
        for each in list(self._running):
            if each.tick(self._report):
                self._forget(each)
                each.tell(self._report, self._hears)
        self._relieve()
        if self._hears.is_waited_for:  # time has passed: more may fit
            self._report(self._hears.look)

    def _hear(self) -> None:
        self._hear_nursery()
        for key, _ in self._selector.select(max(0.0, self._pause())):
            if isinstance(key.data, Running):
                key.data.hear(self._report)
                self._stop_hearing(key.data)
            elif key.data is None:
                with suppress(OSError):
                    self._woken.recv(4096)
            else:
                self._selector.unregister(key.fileobj)
                self._heard = None
                self._report(partial(self._hears.nursery_ended))

    def _hear_nursery(self) -> None:
        if self._nursery is not self._heard:
            if self._heard is not None:
                self._selector.unregister(self._heard.socket)
            self._heard = self._nursery
            if self._heard is not None:
                self._selector.register(self._heard.socket, selectors.EVENT_READ, self._heard)

    def _pause(self) -> float:
        if self._new and self._heard is not None:
            return SHORTEST
        pause = min((each.pause() for each in self._running), default=IDLE)
        if len(self._running) > 1:
            pause = min(pause, max(SHORTEST, self._memory.room() / SPEED))
        return min(TICK if self._running else IDLE, pause)

    def _open(self) -> None:
        """Ask for the cells of new trials."""
        while self._new and not self._ending:
            trial, order = self._new[0]
            try:
                cell = self._open_cell(trial, order)
            except BlockingIOError:
                return
            except Exception as error:
                self._new.popleft()
                self._report(partial(self._hears.refused, trial, error))
                self._report(partial(self._hears.finished, trial))
                continue
            self._new.popleft()
            if cell is None:
                self._report(partial(self._hears.finished, trial))
                continue
            running = Running(trial, cell, self._host)
            self._running.append(running)
            for sock in (cell.control, cell.data):
                self._selector.register(sock, selectors.EVENT_READ, running)

    def _open_cell(self, trial: Trial, order: Order) -> OpenCell | None:
        host, request = self._host, trial.request
        if request.epoch != host.loop.epoch or host.shutdown.is_begun:
            return None  # its connection was lost meanwhile, or the worker leaves and puts the message back
        if self._nursery is None:
            raise CannotOpen("the process that forks them has ended")
        job = Job(host.prepare(request.alone), request.type, trial.target, trial.arguments)
        return OpenCell(self._nursery, order, job, host.lease)

    def _stop_hearing(self, running: Running, *, entirely: bool = False) -> None:
        cell = running.cell
        for sock, is_over in ((cell.control, cell.death is not None), (cell.data, cell.is_silent)):
            if is_over or entirely:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(sock)

    def _forget(self, running: Running) -> None:
        self._running.remove(running)
        self._stop_hearing(running, entirely=True)
        running.cell.close()

    def _relieve(self) -> None:
        """End the youngest trial if memory is short; it is tried again, alone."""
        now = time.monotonic()
        those = [each for each in self._running if each.trial.begun and not each.has_result]
        if len(those) > 1 and now > self._relieved_at and self._memory.room() < 0:
            self._relieved_at = now + RELIEF
            those[-1].trial.is_pressed = True
            those[-1].kill()
