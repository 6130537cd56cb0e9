"""The process between a worker and its cell; run as a script, with nothing but the standard library.

A poison may kill its parent, or its whole process group: that is this process, never the worker. It tells
the worker how the cell died, stops a cell that is about to take the container's memory, and ends it when
the worker ends.

Arguments: the worker's process id, the descriptors of the control socket and of those that the cell inherits
(joined by commas), the cell's memory limit in bytes (0: none), then the command of the cell.
"""

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
import typing

#: Seconds between two looks at the cell's memory, and how many of them what the kernel did counts as recent.
LOOK, RECENT = 0.05, 20
#: Share of the container's memory that must stay free, or so many bytes, whichever is less.
FREE_SHARE, FREE_BYTES = 0.05, 256 * 1024 * 1024

_PR_SET_PDEATHSIG = 1
_PAGE = os.sysconf("SC_PAGE_SIZE")


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
    control: socket.socket, worker: int, cell: "subprocess.Popen[bytes]", limit: int, group: "MemoryGroup"
) -> tuple[int, str]:
    """Return the cell's peak memory in bytes, and why it was stopped.

    ``ordered`` by its worker, or because that has ended; ``oom``; '' for a death of its own.
    """
    peak, why = 0, ""
    watched: list[typing.Any] = [control, *_ends_of(cell.pid)]
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
        used = _resident(cell.pid)
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


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


class MemoryGroup:
    """The memory of this process's control group (cgroup v1 or v2): that of its container, mostly.

    Without one that is limited it is the whole machine: there, too, the kernel kills a cell first.
    """

    def __init__(self) -> None:
        self._files = next(filter(_is_limited, _groups()), None)
        self._is_free = self._files is None and _is_nowhere_limited()
        self._kills = self._newer_kills = self.kills()
        #: What others use is not the cell's fault; of what has come since, it is to blame for its part.
        self._before = self._used = self._most = self.used()

    def is_full(self) -> bool:
        """Whether so little is left that the kernel is about to kill somebody."""
        self._used = self.used()
        self._most = max(self._most, self._used)
        allowed = self.allowed() or 1 << 62
        return allowed - self._used < min(FREE_BYTES, FREE_SHARE * allowed)

    def is_filled_by(self, cell: int) -> bool:
        """Whether at least half of what was taken since the cell was opened is the cell's."""
        return 2 * cell >= self._used - self._before

    def has_killed(self) -> bool:
        """Whether the kernel has killed somebody in the group of late.

        A machine counts also what it kills in groups that are none of this cell's business; where none has a
        limit that this cell is under, nobody is killed while half of the machine's memory is free.
        """
        if self._is_free and 2 * self._most < _machine("MemTotal"):
            return False
        return self.kills() > self._kills

    def forget_old_kills(self) -> None:
        """Take what was killed before the last call for the past: it has nothing to do with a death now."""
        self._kills, self._newer_kills = self._newer_kills, self.kills()

    def allowed(self) -> int:
        """Return the bytes that the group may use, or the machine has where there is no limit; 0: unknown."""
        return _machine("MemTotal") if self._files is None else _number(self._files.allowed) or 0

    def used(self) -> int:
        """Return the bytes that the group uses, or the machine where there is no limit."""
        if self._files is None:
            return _machine("MemTotal") - _machine("MemAvailable")
        # Cached files are given up before anybody is killed.
        return (_number(self._files.used) or 0) - sum(
            count for name, count in _table(self._files.stat) if name in self._files.cached
        )

    def limit(self) -> "int | None":
        """Return the bytes that the group may use; None where there is no limit."""
        return None if self._files is None else _number(self._files.allowed)

    def kills(self) -> int:
        """Return how many processes of the group the kernel has killed so far."""
        return sum(count for name, count in _table(self.events) if name == "oom_kill")

    @property
    def events(self) -> str:
        """The file in which the kernel counts them."""
        return "/proc/vmstat" if self._files is None else self._files.events


class Files(typing.NamedTuple):
    """Where a control group tells about its memory."""

    used: str
    allowed: str
    stat: str
    events: str
    cached: "tuple[str, ...]"


def _groups() -> "typing.Iterator[Files]":
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            # Inside a container the path may be that of the machine outside.
            for inside in (path.rstrip("/"), ""):
                if not controllers:
                    yield _v2("/sys/fs/cgroup" + inside)
                elif "memory" in controllers.split(","):
                    yield _v1("/sys/fs/cgroup/memory" + inside)


def _is_nowhere_limited() -> bool:
    """Whether every group that this process is in, up to the machine, can be seen and has no limit."""
    places: dict[bool, str] = {}
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                places[bool(controllers)] = path.rstrip("/")
    old = True in places
    path, base, files = places.get(old, ""), "/sys/fs/cgroup" + "/memory" * old, _v1 if old else _v2
    # In a container its own group may stand in the place of the machine's, and hide what is above it.
    if not path or not os.path.isdir(base + path) or (not old and os.path.exists(base + "/memory.max")):
        return False
    names = path.split("/")
    return not any(_is_limited(files(base + "/".join(names[:n]))) for n in range(1, len(names) + 1))


def _is_limited(files: Files) -> bool:
    allowed = _number(files.allowed)
    return allowed is not None and allowed < 1 << 60


def _v2(base: str) -> Files:
    names = ("memory.current", "memory.max", "memory.stat", "memory.events")
    return _files(base, names, ("active_file", "inactive_file"))


def _v1(base: str) -> Files:
    names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat", "memory.oom_control")
    return _files(base, names, ("total_active_file", "total_inactive_file"))


def _files(base: str, names: "tuple[str, str, str, str]", cached: "tuple[str, ...]") -> Files:
    used, allowed, stat, events = (f"{base}/{name}" for name in names)
    return Files(used, allowed, stat, events, cached)


def _number(path: str) -> "int | None":
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return None


def _machine(name: str) -> int:
    """Return a figure of /proc/meminfo in bytes; 0 if it cannot be had."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def _table(path: str) -> "list[tuple[str, int]]":
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return [(name, int(count)) for name, count in map(str.split, file)]
    return []


if __name__ == "__main__":
    main()
