"""One cell as its worker sees it: asked for, heard, told to end."""

from __future__ import annotations

import errno
import json
import os
import pickle
import select
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from celery_poison import procfs
from celery_poison.forking import no_fork
from celery_poison.sandbox.cell import Box
from celery_poison.sandbox.nursery import Nursery, pair
from celery_poison.sandbox.trial import Death, Job, Order, info_of

#: Seconds in which a cell must have ended that was killed.
ENDING = 5.0


class CannotOpen(Exception):
    """There is no cell to be had. No message is to blame for it."""


class OpenCell:
    """A watcher and its cell, which runs one job.

    Args:
        lease: descriptor of the memory in which the worker keeps its lease.

    Attributes:
        pid: 0 before it is known.
        death: how it ended; None before.
        is_silent: it has told all that it had to tell.

    Raises:
        BlockingIOError: the nursery has much to do.
        OSError: there is no nursery, or no descriptor left.
        Exception: what the job raises when it is pickled.
    """

    def __init__(self, nursery: Nursery, order: Order, job: Job, lease: int) -> None:
        self.pid = 0
        self.death: Death | None = None
        self.is_silent = False
        self._watcher = -1  # a descriptor
        self._box = Box.holding(job)
        try:
            # A pool process that were forked meanwhile would hold the other ends open.
            with no_fork():
                self.control, watchers = pair()
                self.data, cells = pair()
                with closing(watchers), closing(cells):
                    fds = [watchers.fileno(), cells.fileno(), self._box.fd, lease]
                    nursery.fork(order, fds)
        except BaseException:
            self.close()
            raise
        self.control.setblocking(False)
        self.data.setblocking(False)

    def order(self, word: bytes) -> None:
        """``b"k"``: kill the cell. ``b"s"``: interrupt it, as a soft limit does. ``b"b"``: a trial begins."""
        with suppress(OSError):
            self.control.send(word)

    @property
    def is_watched(self) -> bool:
        """Whether its watcher lives."""
        return self._watcher >= 0 and not select.select([self._watcher], [], [], 0)[0]

    def abandon(self) -> None:
        """Kill the watcher, and so the cell: a suspect may have stopped it."""
        if self._watcher >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self._watcher, signal.SIGKILL)

    def hear(self) -> Iterator[tuple[Any, ...]]:
        """Yield what the cell has said: ``accepted``, pid, time; ``result``, ok, value."""
        while (facts := _next(self.control)) is not None:
            if facts:
                self._heard(json.loads(facts))
            else:
                self._ended_without_watcher()
                break
        while not self.is_silent and (said := _next(self.data)) is not None:
            if not said:
                self.is_silent = True
                break
            word, *rest = pickle.loads(said)
            yield (word, *(self._result() if word == "result" else rest))
        self.is_silent = self.is_silent or self.death is not None

    def _result(self) -> tuple[bool, Any]:
        try:
            ok, value = self._box.take()
        except Exception as error:  # it cannot be read here: an exception's class that is not to be found
            return False, info_of(error)
        return ok, value

    def _heard(self, facts: dict[str, Any]) -> None:
        if "pid" in facts:
            self.pid = facts["pid"]
            with suppress(OSError):
                self._watcher = os.pidfd_open(facts["watcher"])
        else:
            self.death = Death(**facts)

    def _ended_without_watcher(self) -> None:
        """Make sure that the cell has ended too; the kernel does that."""
        if self.death is not None:
            return
        self.death = Death(None)
        deadline = time.monotonic() + ENDING
        while self.pid and procfs.is_alive(self.pid) and time.monotonic() < deadline:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)
        with suppress(OSError):  # what it has started; its watcher would have done so
            if self.pid:
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        for part in (vars(self).get("control"), vars(self).get("data"), self._box):
            if part is not None:
                part.close()
        if self._watcher >= 0:
            os.close(self._watcher)
            self._watcher = -1


def _next(sock: Any) -> bytes | None:
    """Return the next message; empty at the end of all, None when there is none yet."""
    try:
        data: bytes = sock.recv(4096)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno == errno.EBADF:
            return None
        return b""
    return data
