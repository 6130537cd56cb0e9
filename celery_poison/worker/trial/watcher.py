"""The process between a worker and its cell; run as a script, with nothing but the standard library.

A poison may kill its parent, or its whole process group: that is this process, never the worker. It tells
the worker how the cell died, and stops a cell that is about to take the container's memory.

Arguments: the descriptor of the worker's control socket, the number of the cell's socket, then the
command of the cell.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys

#: Seconds between two looks at the cell's memory.
LOOK = 0.05
#: Share of the container's memory that must stay free, or so many bytes, whichever is less.
FREE_SHARE, FREE_BYTES = 0.05, 256 * 1024 * 1024

_PR_SET_PDEATHSIG = 1
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    cell_end, limit, command = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    cell = subprocess.Popen(
        command, start_new_session=True, pass_fds=(cell_end,), preexec_fn=_make_first_choice, stdin=subprocess.DEVNULL
    )
    os.close(cell_end)
    _tell(control, pid=cell.pid)
    peak, why = _watch(control, cell, limit)
    # Whatever the cell has started goes with it.
    with contextlib.suppress(OSError):
        os.killpg(cell.pid, signal.SIGKILL)
    _tell(control, status=cell.returncode, peak=peak, why=why)


def _make_first_choice() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.nice(5)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _tell(control: socket.socket, **facts: object) -> None:
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(facts).encode() + b"\n")


def _watch(control: socket.socket, cell: "subprocess.Popen[bytes]", limit: int) -> tuple[int, str]:
    """Return the cell's peak memory in bytes and why it was stopped ('' for a death of its own)."""
    peak, why = 0, ""
    pidfd = os.pidfd_open(cell.pid)
    while True:
        ready, _, _ = select.select([control, pidfd], [], [], LOOK)
        if pidfd in ready:
            cell.wait()
            return max(peak, _children_peak()), why
        if control in ready:
            order = control.recv(64)
            if not order or b"kill" in order:
                cell.kill()
            elif b"soft" in order:
                cell.send_signal(signal.SIGUSR1)
        used = _resident(cell.pid)
        peak = max(peak, used)
        if not why and ((limit and used > limit) or _container_is_full()):
            why = "oom"
            cell.kill()


def _children_peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _container_is_full() -> bool:
    for used, allowed in (
        ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError), open(used) as first, open(allowed) as second:
            now, most = int(first.read()), int(second.read())
            return most < 1 << 60 and most - now < min(FREE_BYTES, FREE_SHARE * most)
    return False


if __name__ == "__main__":
    main()
