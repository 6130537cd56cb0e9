"""The process between a worker and its cell; it has nothing but the standard library and ``procfs``.

A poison may kill its parent, or its whole process group: that is this process, never the worker. It tells
the worker how the cell died, lets no suspect take the container's memory, and ends the cell when the worker
ends. It is started for every cell, so it is to start fast: ``process.py`` runs it in a package
whose ``__init__``, and so Celery, is left out.

Arguments: the worker's process id, the descriptors of the control socket and of those that the cell inherits
(joined by commas), the cell's memory limit in bytes (0: none), then the command of the cell.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from enum import Enum
from typing import Any

from celery_poison import procfs
from celery_poison.procfs import MemoryGroup

#: Seconds between two looks at the cell's memory, and for how long what the kernel did counts as recent.
LOOK, RECENT = 0.05, 1.0
#: The shortest pause between two looks, and the bytes that a process may take in a second: where little is
#: left, there is a look before it can be gone.
SHORTEST, SPEED = 0.002, 4 << 30
#: A suspect that has taken so many times what is left for it, and so many bytes, gets no more than that.
NEAR, FLOOR = 3, 100 << 20
#: How a process ends that gets no memory, if it does not raise MemoryError.
_WITHOUT_MEMORY = (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)

#: Seconds for which it outlives a cell that was killed, at most.
STAY = 2.0

_PR_SET_PDEATHSIG = 1


def main() -> None:
    worker, control = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    inherited = [int(fd) for fd in sys.argv[3].split(",")]
    limit, command = int(sys.argv[4]), sys.argv[5:]
    # The worker decides when this process ends, also when its whole service is told to.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)
    group = MemoryGroup()
    watcher = os.getpid()
    cell = subprocess.Popen(
        command,
        start_new_session=True,
        pass_fds=inherited,
        preexec_fn=lambda: _make_first_choice(watcher),
        stdin=subprocess.DEVNULL,
    )
    for fd in inherited:
        os.close(fd)
    _tell(control, pid=cell.pid)
    memory = Memory(cell.pid, limit, group)
    why = _watch(control, worker, cell, memory)
    # Whatever the cell has started goes with it.
    with contextlib.suppress(OSError):
        os.killpg(cell.pid, signal.SIGKILL)
    peak = max(memory.peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    why = why or why_of(
        cell.returncode,
        is_confined=memory.is_confined,
        has_killed=group.has_killed(),
        is_filled=group.is_filled_by(peak),
    )
    _tell(control, status=cell.returncode, peak=peak, why="" if why == "ordered" else why)
    if not why and cell.returncode == -signal.SIGKILL:
        # The worker looks whether this process was killed too; it closes the socket when it has seen enough.
        select.select([control], [], [], STAY)


def _make_first_choice(watcher: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:
        os._exit(1)
    with contextlib.suppress(OSError):
        os.nice(5)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _tell(control: socket.socket, **facts: object) -> None:
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(facts).encode() + b"\n")


def _watch(control: socket.socket, worker: int, cell: subprocess.Popen[bytes], memory: Memory) -> str:
    """Return why the cell was stopped.

    ``ordered`` by its worker, or because that has ended; ``oom``; '' for a death of its own.
    """
    why = ""
    watched: list[Any] = [control, *_ends_of(cell.pid)]
    while True:
        ready, _, _ = select.select(watched, [], [], memory.pause)
        orders = _next_orders(control) if control in ready else None
        if orders == b"":
            watched.remove(control)
        if os.getppid() != worker or orders == b"" or b"k" in (orders or b""):
            why = why or "ordered"
            cell.kill()
        if cell.poll() is not None:
            return why
        if orders and b"b" in orders:
            memory.begin()
        if orders and b"s" in orders:
            cell.send_signal(signal.SIGUSR1)
        if memory.look() is Step.STOP and not why:
            why = "oom"
            cell.kill()


class Step(Enum):
    """What is done about a cell's memory."""

    NOTHING = "nothing"
    CONFINE = "confine"
    STOP = "stop"


class Memory:
    """What the cell holds, and what is left for it.

    Args:
        limit: bytes that it may hold; 0: as much as there is.
    """

    def __init__(self, pid: int, limit: int, group: MemoryGroup) -> None:
        self._pid, self._limit, self._group = pid, limit, group
        self._can_confine = group.limit() is not None
        self._before: int | None = None
        self._forgets_at = time.monotonic() + RECENT
        self.peak, self.pause, self.is_confined = 0, LOOK, False

    def begin(self) -> None:
        """Take what it takes from now on for the suspect's."""
        self._before = procfs.resident(self._pid)

    def look(self) -> Step:
        """Look at it, confine it if need be, and say what was found."""
        if time.monotonic() > self._forgets_at:
            self._group.forget_old_kills()
            self._forgets_at = time.monotonic() + RECENT
        used, room = procfs.resident(self._pid), self._group.room()
        self.peak = max(self.peak, used)
        self.pause = min(LOOK, max(SHORTEST, room / SPEED))
        step = step_of(
            taken=0 if self._before is None else used - self._before,
            room=room,
            is_filled=self._group.is_filled_by(used),
            is_over=0 < self._limit < used,
            can_confine=self._can_confine and not self.is_confined,
        )
        if step is Step.CONFINE:
            self._confine(room)
        return step

    def _confine(self, room: int) -> None:
        """Let the kernel refuse the cell more than what is left, however fast it takes it."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            soft, hard = resource.prlimit(self._pid, resource.RLIMIT_DATA)
            most = procfs.data(self._pid) + room
            if soft == resource.RLIM_INFINITY or most < soft:
                resource.prlimit(self._pid, resource.RLIMIT_DATA, (most, hard))
                self.is_confined = True


def step_of(*, taken: int, room: int, is_filled: bool, is_over: bool, can_confine: bool) -> Step:
    """Decide what is done about a cell.

    Args:
        taken: bytes that it holds more than before its trial; 0 before that.
        room: bytes that are left until the memory counts as full.
        is_filled: it holds at least half of what was taken since it was started.
        is_over: it holds more than it may.
        can_confine: it is in a control group with a limit, and not confined yet.
    """
    if is_over or (room < 0 and is_filled):
        return Step.STOP
    # Who only reserves memory holds little of it, and never comes here.
    if can_confine and is_filled and taken >= max(FLOOR, NEAR * room):
        return Step.CONFINE
    return Step.NOTHING


def why_of(status: int, *, is_confined: bool, has_killed: bool, is_filled: bool) -> str:
    """Decide whether memory was what a cell died of by itself: ``oom``, ``pressed`` (others took it) or ''.

    Args:
        status: its exit code, negative for a signal.
        is_confined: it was refused more memory than was left.
        has_killed: the kernel has killed somebody for want of memory.
        is_filled: it had at least half of what was taken.
    """
    if is_confined and status in _WITHOUT_MEMORY:
        return "oom"
    if status == -signal.SIGKILL and has_killed:
        return "oom" if is_filled else "pressed"
    return ""


def _ends_of(pid: int) -> list[int]:
    """Return a descriptor that becomes readable at the end of a process, where the kernel has such."""
    with contextlib.suppress(OSError, AttributeError):
        return [os.pidfd_open(pid)]
    return []


def _next_orders(control: socket.socket) -> bytes:
    """Return k (kill the cell), s (interrupt it), b (a trial begins); nothing when there will be no more."""
    with contextlib.suppress(OSError):
        return control.recv(64)
    return b""
