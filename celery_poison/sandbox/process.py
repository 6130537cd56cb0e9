"""One trial in its cell, as the worker sees it: asked for, heard, kept within its limits, told to end."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_poison.basics.forking import no_fork, unpatched
from celery_poison.sandbox.cell import boxed, take
from celery_poison.sandbox.nursery import Nursery, pair
from celery_poison.sandbox.trial import NEVER, Death, Host, Job, Trial, error_of, info_of

logger = get_logger("celery_poison")

#: Seconds in which a forked process must be ready to run a task.
SETTING_UP = 120.0
#: Seconds in which a cell must have ended that was killed, or has given its result.
ENDING = 5.0
#: Seconds in which a cell whose time is over can say where it hangs.
ANSWERING = 0.25
#: Seconds in which a cell that says nothing more should have ended by itself.
EXITING = 1.0
#: Seconds for which a worker must outlive a cell that was killed, if its watcher does so too. Who kills all
#: processes of a worker does not leave out the one next to the cell for so long.
MOMENT = 0.02
#: Seconds for which it must outlive both: a busy machine may interrupt who kills all of them for so long.
OUTLIVE = 0.5


class Running:
    """A trial, the watcher and the cell; ``report`` passes a call on to the event loop.

    Attributes:
        pid: of the cell; 0 before it is known.
        death: how the cell ended; None before.

    Raises:
        BlockingIOError: the nursery has much to do.
        OSError: there is no nursery, or no descriptor left.
        Exception: what the arguments of the task raise when they are pickled.
    """

    def __init__(
        self, trial: Trial, nursery: Nursery, host: Host, report: Callable[[Callable[[], Any]], None]
    ) -> None:
        self.trial, self.pid = trial, 0
        self.death: Death | None = None
        self._host, self._report, self._nursery = host, report, nursery
        self._has_result = self._is_silent = self._is_killed = False
        self._kill_at, self._abandon_at, self._over_at = time.monotonic() + SETTING_UP, NEVER, NEVER
        self._watcher = -1  # a descriptor
        prepare = host.prepare(trial.request.alone)
        self._box = boxed(Job(prepare, trial.request.type, trial.target, trial.arguments))
        # A pool process that were forked meanwhile would hold the other ends open.
        with no_fork():
            (self._control, watchers), (self._data, cells) = pair(), pair()
            with closing(watchers), closing(cells):
                fds = [each.fileno() for each in (watchers, cells, self._box)]
                nursery.fork(trial.order, [*fds, host.lease])
        self.sockets = self._control, self._data
        for sock in self.sockets:
            sock.setblocking(False)

    def close(self) -> None:
        for part in (self._control, self._data, self._box):
            part.close()
        if self._watcher >= 0:
            os.close(self._watcher)

    def order(self, word: bytes) -> None:
        """Have its watcher do what ``watcher._next_orders`` lists."""
        with suppress(OSError):
            self._control.send(word)

    def kill(self) -> None:
        if not self._is_killed:
            self._is_killed, self._abandon_at = True, time.monotonic() + ENDING
            self.order(b"k")

    def abandon(self) -> None:
        """Kill the watcher, which a suspect may have stopped, the cell, and what that has started."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._watcher, signal.SIGKILL)
        with suppress(OSError):
            if self.pid:
                os.killpg(self.pid, signal.SIGKILL)

    @property
    def is_youth(self) -> bool:
        """Whether it could be ended, and begun anew."""
        return self.trial.begun and not self._has_result and not self._is_killed

    # --- what it says ----------------------------------------------------------------------------------

    def hear(self) -> list[Any]:
        """Pass on what watcher and cell have said; return the sockets on which nothing more will come."""
        while self.death is None and (facts := _next(self._control)) is not None:
            self._hear_watcher(json.loads(facts) if facts else {})
        while not self._is_silent and (said := _next(self._data)) is not None:
            self._hear_cell(pickle.loads(said) if said else ("silent",))
        if self.death is not None and self._over_at == NEVER:
            self._over_at = time.monotonic() + (MOMENT if self._is_proof() else 0.0)
        return [self._control] * (self.death is not None) + [self._data] * self._is_silent

    def _hear_watcher(self, facts: dict[str, Any]) -> None:
        if "pid" in facts:
            self.pid = facts["pid"]
            with suppress(OSError):
                self._watcher = os.pidfd_open(facts["watcher"])
        else:
            if not facts:
                self.abandon()  # the kernel ends the cell then; its watcher would have ended the rest
            self.death = Death(**facts) if facts else Death(None)

    def _hear_cell(self, said: tuple[Any, ...]) -> None:
        trial, now = self.trial, time.monotonic()
        match said:
            case "accepted", pid, at:
                self._kill_at = NEVER
                trial.begin()
                self.order(b"b")
                self._report(partial(trial.accepted, pid, at))
            case ("result",):
                self._has_result, self._kill_at = True, now + ENDING
                ok, value = self._result()
                self._report(partial(trial.ended if ok else trial.failed, value))
            case _:
                self._is_silent, self._kill_at = True, min(self._kill_at, now + EXITING)

    def _result(self) -> tuple[bool, Any]:
        try:
            ok, value = take(self._box)
        except BaseException as error:
            # Such as a class that is not to be found; or the user's code, which reads it, ends this thread.
            return False, info_of(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        return ok, value

    # --- its limits, and its end -----------------------------------------------------------------------

    def _is_proof(self) -> bool:
        """Whether its death counts against the suspect, unless somebody kills all of a worker's processes."""
        trial = self.trial
        is_ours = trial.overdue or trial.terminated_by or trial.is_pressed or self._has_result
        return trial.begun and self.death is not None and self.death.was_killed and not is_ours

    def is_over(self) -> bool:
        """Keep limits; return whether it has ended, and may be told of."""
        now, trial = time.monotonic(), self.trial
        if self.death is not None:
            if now >= self._over_at and not self._is_killed and self._is_proof() and not self._is_watched():
                self._is_killed, self._over_at = True, now + OUTLIVE - MOMENT
            return now >= self._over_at
        if trial.begun and not self._has_result:
            self._limit(trial, now)
        if now > self._kill_at:
            if not self.pid and not self._nursery.has_ended():  # all sockets that it has are closed then
                logger.error("celery_poison: a nursery has forked no cell in %d s: it is killed", SETTING_UP)
                self._nursery.end()
            self.kill()
        if now > self._abandon_at:  # its watcher does not obey
            self.abandon()
            self._abandon_at = now + ENDING
        return False

    def _limit(self, trial: Trial, now: float) -> None:
        if trial.terminated_by:
            self.kill()
        elif trial.is_over():
            if self._kill_at == NEVER:
                self._host.ask_where(self.pid)
                self._kill_at = now + ANSWERING
        elif trial.is_soft_over():
            self._report(partial(trial.timed_out, True, trial.soft or 0.0))
            self.order(b"s")

    def _is_watched(self) -> bool:
        if self._watcher < 0:
            return False
        poll = unpatched("select", "poll")()  # any number of descriptors
        poll.register(self._watcher, select.POLLIN)
        return not poll.poll(0)

    def pause(self) -> float:
        """Return the seconds until a limit is over, or its end may be told of."""
        limit = self.trial.pause() if self.trial.begun and not self._has_result else NEVER
        return min(limit, min(self._kill_at, self._abandon_at, self._over_at) - time.monotonic())

    def tell(self) -> bool:
        """Report how it ended; return False where it is to be tried again, through no fault of its own."""
        trial, death = self.trial, self.death
        assert death is not None
        trial.taken = death.taken
        if self._has_result:
            return True
        # Beside others it is not known who has used up the memory, unless it has a limit of its own.
        is_shared = trial.has_company and death.why and not 0 < trial.order.limit < death.peak
        trial.is_pressed = bool(trial.is_pressed or is_shared) and not trial.is_alone
        if trial.is_pressed:
            name = trial.request.humaninfo()
            logger.warning("celery_poison: %s is tried again, alone: memory is short", name)
        if not trial.begun or trial.is_pressed:
            return False
        is_late = trial.overdue and trial.hard  # its cell is killed then, too
        story = f"met its hard time limit of {trial.hard:g} s" if is_late else death
        logger.warning("celery_poison: %s on trial: %s", trial.request.humaninfo(), story)
        evidence = self._host.explain(self.pid, death)
        if death.why and 0 < trial.order.limit < death.peak:
            evidence = replace(evidence, limit_kb=trial.order.limit >> 10, limit_of="trial")
        # On the event loop, where it is known whether it was revoked.
        self._report(lambda: trial.failed(info_of(error_of(trial, death, evidence))))
        if trial.overdue:
            self._report(partial(trial.timed_out, False, trial.hard or 0.0))
        return True


def _next(sock: Any) -> bytes | None:
    """Return the next message; empty at the end of all, None when there is none yet."""
    try:
        return bytes(sock.recv(4096))
    except BlockingIOError:
        return None
    except OSError:
        return b""
