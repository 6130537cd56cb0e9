"""What runs in cells: one thread (a greenlet, where there are such) hears all cells of a worker.

It keeps time limits, relieves a full memory, and tells the event loop how each trial ended.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery_poison.cells.cell import pair
from celery_poison.cells.trial import Host, Trial
from celery_poison.cells.watcher import SPEED

#: The longest pause of the thread, and the shortest where memory is scarce, in seconds.
TICK, SHORTEST = 1.0, 0.01


class Trials:
    """All that runs in cells of one worker, and the thread that hears it.

    On the event loop ``hears`` gets the outcome of each trial: ``finished`` or ``again``. It is to ``look``
    again while some are ``waiting``. ``memory`` is what all cells share.
    """

    def __init__(self, host: Host, hears: Any) -> None:
        self._host, self._hears = host, hears
        self._new: deque[Trial] = deque()
        self._running: list[Trial] = []
        self._thread: threading.Thread | None = None
        self._ending = False

    def start(self) -> None:
        """Have the thread, before the first cell is asked for; RuntimeError or OSError: there can be none."""
        if self._thread is None:
            self._selector = selectors.DefaultSelector()
            self._wakes, self._woken = pair()
            self._selector.register(self._woken, selectors.EVENT_READ)
            thread = threading.Thread(target=self._work, name="poison-cells", daemon=True)
            thread.start()
            self._thread = thread

    def hear(self, trial: Trial) -> None:
        """Hear a cell that was opened, to its end."""
        self._new.append(trial)
        self.wake()

    def wake(self) -> None:
        with suppress(OSError):  # full: it is being woken up already
            self._wakes.send(b"!")

    def end(self) -> None:
        """End all cells, now. Nothing is reported any more."""
        self._ending = True
        if self._thread is not None:
            self.wake()
            self._thread.join(3 * TICK)
        for each in (*self._new, *self._running):
            each.abandon()
            each.close()

    def report(self, call: Callable[[], Any]) -> None:
        """Have the event loop do ``call``."""
        if not self._ending:
            self._host.loop.call_in_loop(call)

    def _work(self) -> None:
        while not self._ending:
            try:
                self._step()
            except Exception as error:  # must go on: others run
                self._host.complain(error)
                time.sleep(SHORTEST)

    def _step(self) -> None:
        self._hear()
        while self._new:
            self._running.append(new := self._new.popleft())
            for each in self._running if len(self._running) > 1 else ():
                each.has_company = True
            for sock in new.sockets:
                self._selector.register(sock, selectors.EVENT_READ, new)
        for each in list(self._running):
            if each.is_over():
                self._running.remove(each)
                self._stop_hearing(each.sockets)
                each.close()
                self.report(partial(self._hears.finished if each.tell() else self._hears.again, each))
        self._relieve()
        if self._hears.waiting:  # time has passed: more may fit
            self.report(self._hears.look)

    def _hear(self) -> None:
        pause = min([TICK, *(each.pause() for each in self._running)])
        if len(self._running) > 1:
            pause = min(pause, max(SHORTEST, self._hears.memory.room() / SPEED))
        for key, _ in self._selector.select(max(0.0, pause)):
            if key.data is None:
                with suppress(OSError):
                    self._woken.recv(4096)
            else:
                self._stop_hearing(key.data.hear())

    def _stop_hearing(self, sockets: Any) -> None:
        for sock in sockets:
            with suppress(KeyError, ValueError):
                self._selector.unregister(sock)

    def _relieve(self) -> None:
        """End the youngest trial if memory is short, unless one is ending; it is tried again, alone."""
        those = [each for each in self._running if each.begun and not each.has_result]
        if len(those) > 1 and not any(each.is_killed for each in those) and self._hears.memory.room() < 0:
            those[-1].is_pressed = True
            those[-1].kill()
