"""The process between a worker and its cell; it has nothing but the standard library and ``procfs``.

A poison may kill its parent, or its whole process group: that is this process, never the worker. It tells
the worker how the cell died, stops a cell that is about to take the container's memory, and ends it when
the worker ends. It is started for every cell, so it is to start fast: ``process.py`` runs it in a package
whose ``__init__``, and so Celery, is left out.

Arguments: the worker's process id, the descriptors of the control socket and of those that the cell inherits
(joined by commas), the cell's memory limit in bytes (0: none), then the command of the cell.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from celery_poison import procfs
from celery_poison.procfs import MemoryGroup

#: Seconds between two looks at the cell's memory, and how many of them what the kernel did counts as recent.
LOOK, RECENT = 0.05, 20

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
    peak, why = _watch(control, worker, cell, limit, group)
    # Whatever the cell has started goes with it.
    with contextlib.suppress(OSError):
        os.killpg(cell.pid, signal.SIGKILL)
    if not why and cell.returncode == -signal.SIGKILL and group.has_killed():
        why = "oom" if group.is_filled_by(peak) else "pressed"
    _tell(control, status=cell.returncode, peak=peak, why="" if why == "ordered" else why)


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


def _watch(
    control: socket.socket, worker: int, cell: subprocess.Popen[bytes], limit: int, group: MemoryGroup
) -> tuple[int, str]:
    """Return the cell's peak memory in bytes, and why it was stopped.

    ``ordered`` by its worker, or because that has ended; ``oom``; '' for a death of its own.
    """
    peak, why = 0, ""
    watched: list[Any] = [control, *_ends_of(cell.pid)]
    for look in itertools.count(1):
        if look % RECENT == 0:
            group.forget_old_kills()
        ready, _, _ = select.select(watched, [], [], LOOK)
        order = _next_order(control) if control in ready else None
        if order == b"":
            watched.remove(control)
        if os.getppid() != worker or order in (b"", b"k"):
            why = why or "ordered"
            cell.kill()
        if cell.poll() is not None:
            break
        if order == b"s":
            cell.send_signal(signal.SIGUSR1)
        used = procfs.resident(cell.pid)
        peak = max(peak, used)
        if not why and ((limit and used > limit) or (group.is_full() and group.is_filled_by(used))):
            why = "oom"
            cell.kill()
    return max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024), why


def _ends_of(pid: int) -> list[int]:
    """Return a descriptor that becomes readable at the end of a process, where the kernel has such."""
    with contextlib.suppress(OSError, AttributeError):
        return [os.pidfd_open(pid)]
    return []


def _next_order(control: socket.socket) -> bytes:
    """Return k (kill the cell) or s (interrupt it); nothing when there will be no more."""
    with contextlib.suppress(OSError):
        orders = control.recv(64)
        return b"k" if b"k" in orders else orders[:1]
    return b""
