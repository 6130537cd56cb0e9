"""The process between the nursery and a cell; it needs nothing but the standard library and ``basics``.

A poison may kill its parent, or its whole process group: that is this process, never the worker. It tells
the worker how the cell died, lets no suspect take the container's memory, and ends the cell when the worker
ends. It is forked for one cell.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import time
from contextlib import suppress
from typing import Any

from celery_poison.basics import procfs
from celery_poison.basics.forking import unpatched
from celery_poison.basics.procfs import MemoryGroup

#: The longest pause between two looks at the cell's memory, and for how long what the kernel did counts as
#: recent, in seconds.
LOOK, RECENT = 1.0, 1.0
#: The shortest pause between two looks, and the bytes that a process may take in a second: where little is
#: left, there is a look before it can be gone.
SHORTEST, SPEED = 0.002, 8 << 30
#: A suspect that has taken so many times what is left for it, and so many bytes, gets no more than that.
NEAR, FLOOR = 3, 100 << 20
#: How a process ends that gets no memory, if it does not raise MemoryError.
_WITHOUT_MEMORY = (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)

#: Seconds for which it outlives a cell that was killed, at most.
STAY = 2.0
#: By how much a cell gives way to others.
NICENESS = 5

#: Names of processes.
NURSERY, WATCHER = "poison-nursery", "poison-watcher"

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def watch(control: Any, end_of_worker: int, memory: Memory) -> None:
    """Watch the cell that has this ``memory`` to its end.

    Args:
        control: socket to the worker, which says by it that a trial begins, and closes it when it ends.
        end_of_worker: descriptor that becomes readable then.
    """
    pid = memory.pid
    _tell(control, pid=pid, watcher=os.getpid())
    is_stopped = _until_it_ends(control, end_of_worker, memory)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:  # what it has started goes with it
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    memory.peak = max(memory.peak, usage.ru_maxrss * 1024)
    why = "oom" if is_stopped else memory.why(code)
    _tell(control, status=code, peak=memory.peak, why=why)
    if not why and code == -signal.SIGKILL:
        # The worker looks whether this process was killed too; it closes the socket when it has seen enough.
        unpatched("select", "select")([control], [], [], STAY)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, which may have happened by now."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def rename(name: str) -> None:
    """Name this process for ``ps -o comm``."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def be_watched(watcher: int) -> None:
    """End with the watcher, give way to others, and be the first that the kernel ends for want of memory."""
    os.setsid()
    end_with_parent(watcher)
    os.nice(NICENESS)
    for name, value in (("autogroup", NICENESS), ("oom_score_adj", 1000)):  # a session has a group of its own
        with suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(str(value))


def _tell(control: Any, **facts: object) -> None:
    with suppress(OSError):
        control.send(json.dumps(facts).encode())


def _until_it_ends(control: Any, end_of_worker: int, memory: Memory) -> bool:
    """Return whether it was stopped for its memory; it is killed with its worker, too."""
    pid, cell = memory.pid, os.pidfd_open(memory.pid)
    wait = unpatched("select", "select")  # a patched one would run the worker's greenlets here
    while True:
        ready, _, _ = wait([control, end_of_worker, cell], [], [], memory.pause)
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        has_ended = end_of_worker in ready
        if control in ready:
            memory.before = procfs.resident(pid)
            with suppress(OSError):
                has_ended = not control.recv(64) or has_ended
        if has_ended or memory.look():
            os.kill(pid, signal.SIGKILL)
            return not has_ended


class Memory:
    """The memory of a cell, and the memory that is left for it.

    Args:
        limit: bytes that it may have; 0: as much as there is.
        group: made before the cell was.
    """

    def __init__(self, pid: int, limit: int, group: MemoryGroup) -> None:
        self.pid, self._limit, self._group = pid, limit, group
        self._can_confine = group.limit() is not None
        #: What it shares with the nursery; and what it held when its trial began: the rest is its suspect's.
        self._shared, self.before = procfs.resident(pid), 1 << 62
        self._forgets_at = time.monotonic() + RECENT
        self.peak, self.pause, self.is_confined = 0, SHORTEST, False

    def look(self) -> bool:
        """Look at it; confine it if need be; return whether it must be stopped."""
        if time.monotonic() > self._forgets_at:
            self._group.forget_old_kills()
            self._forgets_at = time.monotonic() + RECENT
        used, room = procfs.resident(self.pid), self._group.room()
        self.peak = max(self.peak, used)
        left = min(room, self._limit - used) if self._limit else room
        self.pause = min(LOOK, max(SHORTEST, left / SPEED))
        is_filled = self._group.is_filled_by(used - self._shared)
        # What is only reserved is not held, and does not count here.
        has_taken = is_filled and used - self.before >= max(FLOOR, NEAR * room)
        if has_taken and self._can_confine and not self.is_confined:
            self._confine()
        return 0 < self._limit < used or (room < 0 and is_filled)

    def why(self, status: int) -> str:
        """Return whether it died for want of memory: ``oom``, ``pressed`` (others took it) or ''."""
        if self.is_confined and status in _WITHOUT_MEMORY:
            return "oom"
        if status == -signal.SIGKILL and self._group.has_killed():
            return "oom" if self._group.is_filled_by(self.peak - self._shared) else "pressed"
        return ""

    def _confine(self) -> None:
        """Let the kernel refuse the cell more than what is left, however fast it takes it."""
        with suppress(OSError, ValueError, AttributeError):
            soft, hard = resource.prlimit(self.pid, resource.RLIMIT_DATA)
            # In this order: what it takes between both is granted once. And others may take a little, too.
            held = procfs.data(self.pid)
            most = held + self._group.room() * 15 // 16
            if soft == resource.RLIM_INFINITY or most < soft:
                resource.prlimit(self.pid, resource.RLIMIT_DATA, (most, hard))
                self.is_confined = True
