"""What the kernel knows: every read of ``/proc`` and of control groups.

Standard library only, and nothing of this package: the watcher of a cell imports it too. What cannot be
read, as everywhere but on Linux, is answered like a process that has ended, or a machine without limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_GROUPS = "/sys/fs/cgroup"
PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")

#: Share of the memory that must stay free, or so many bytes, whichever is less: else it is full.
FREE_SHARE, FREE_BYTES = 0.05, 256 * 1024 * 1024
#: With more room than this the kernel kills no process here: it was in a container beside this one.
SCARCE = 1 << 30

# --- processes -------------------------------------------------------------------------------------


class Process(NamedTuple):
    """One row of the process table.

    Attributes:
        state: one letter; Z is a zombie: dead, but not yet waited for by its parent.
        cpu: user and system time of all its threads, in seconds.
        started: when, in the kernel's ticks since it began; with the pid it tells two processes apart.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu: float
    started: int

    @property
    def lives(self) -> bool:
        return self.state not in "ZX"


def process(pid: int) -> Process | None:
    """Return one process, a zombie too; None when there is no such."""
    stat = _text(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The name, in parentheses, may itself hold spaces and parentheses: read on behind the last one.
    words = stat[stat.rindex(")") + 2 :].split()
    parent, group, session = map(int, words[1:4])
    cpu = (int(words[11]) + int(words[12])) / _TICKS
    return Process(pid, words[0], parent, group, session, cpu, int(words[19]))


def processes() -> Iterator[Process]:
    """Yield every process that is alive now (zombies are not)."""
    for name in os.listdir("/proc"):
        found = process(int(name)) if name.isdigit() else None
        if found and found.lives:
            yield found


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    found = process(pid)
    return found is not None and found.lives


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children that are alive."""
    return sorted(each.pid for each in processes() if each.parent == pid)


def members_of_session(session: int) -> list[int]:
    """Return the ids of all processes that live in a session."""
    return sorted(each.pid for each in processes() if each.session == session)


def carrying(variable: str, value: str) -> list[int]:
    """Return the processes that were started with this environment variable, whichever way they descend.

    A mark in the environment is inherited by children, by their fresh sessions and by what they
    execute, so it finds what a parent id or a session id no longer does. Other users' processes and
    this process itself are never among them.
    """
    needle = f"{variable}={value}".encode()
    found = (each.pid for each in processes() if each.pid != os.getpid())
    return sorted(pid for pid in found if needle in _parts(f"/proc/{pid}/environ"))


def command(pid: int) -> list[bytes]:
    """Return the command line of a process; empty when there is none, and for a zombie."""
    return _parts(f"/proc/{pid}/cmdline")


def name(pid: int) -> str:
    """Return the name of a process, as ``ps -o comm`` shows it; empty if it has ended."""
    return _text(f"/proc/{pid}/comm").strip()


def resident(pid: int) -> int:
    """Return the memory that a process holds, in bytes; 0 if it has ended."""
    with suppress(ValueError, IndexError):
        return int(_text(f"/proc/{pid}/statm").split()[1]) * PAGE
    return 0


def private(pid: int | str = "self") -> int:
    """Return the memory that a process holds and shares with no file, in bytes; 0 if it has ended."""
    with suppress(ValueError, IndexError):
        words = _bytes(f"/proc/{pid}/statm").split()
        return (int(words[1]) - int(words[2])) * PAGE
    return 0


def faults(thread: int | None = None) -> int:
    """Return the bytes of the pages that this process, or one of its threads, has touched first so far.

    Where the kernel gives it large pages it has touched more.
    """
    with suppress(ValueError, IndexError):
        stat = _bytes(f"/proc/self/task/{thread}/stat" if thread else "/proc/self/stat")
        return int(stat[stat.rindex(b")") + 2 :].split()[7]) * PAGE
    return 0


def data(pid: int) -> int:
    """Return the memory that a process may write to, in bytes, held or only reserved; 0 if it has ended."""
    with suppress(ValueError, IndexError):
        return int(_text(f"/proc/{pid}/statm").split()[5]) * PAGE
    return 0


def peak_kb(pid: int) -> int:
    """Return the most memory that a process has held, in KiB; 0 if it has ended."""
    return _table(f"/proc/{pid}/status").get("VmHWM:", 0)


# --- memory ----------------------------------------------------------------------------------------


class MemoryGroup:
    """The memory of this process's control group (cgroup v1 or v2): that of its container, mostly.

    Without one that is limited it is the whole machine.
    """

    def __init__(self) -> None:
        self._files = _limited_group()
        self._kills = self._newer_kills = self.kills()
        #: What others use is not the cell's fault; of what has come since, it is to blame for its part.
        self._before = self._used = self.used()
        self._was_scarce = False

    def room(self) -> int:
        """Return the bytes that can be taken until the kernel is about to kill; less than 0 then."""
        self._used = self.used()
        allowed = self.allowed() or 1 << 62
        room = allowed - self._used - min(FREE_BYTES, int(FREE_SHARE * allowed))
        self._was_scarce = self._was_scarce or room < SCARCE
        return room

    def is_filled_by(self, taken: int) -> bool:
        """Whether ``taken`` bytes are at least half of what was taken since this object was made."""
        return 2 * taken >= self._used - self._before

    def has_killed(self) -> bool:
        """Whether the kernel has killed a process of late: in the group, or on a machine that is full."""
        return self._was_scarce and self.kills() > self._kills

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
        # Cached files are given up before a process is killed.
        stat = _table(self._files.stat)
        return (_number(self._files.used) or 0) - sum(stat.get(name, 0) for name in self._files.cached)

    def limit(self) -> int | None:
        """Return the bytes that the group may use; None where there is no limit."""
        return None if self._files is None else _number(self._files.allowed)

    def kills(self) -> int:
        """Return how many processes of the group, or of the machine, the kernel has killed so far."""
        events = "/proc/vmstat" if self._files is None else self._files.events
        return _table(events).get("oom_kill", 0)


class _Files(NamedTuple):
    """The files in which a control group accounts for its memory."""

    used: str
    allowed: str
    stat: str
    events: str
    cached: tuple[str, ...]


def _limited_group() -> _Files | None:
    """Return the memory group of this process that has a limit."""
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            # Inside a container the path may be that of the machine outside.
            for inside in (path.rstrip("/"), ""):
                files = _files(inside, is_v1=bool(controllers))
                if (_number(files.allowed) or 1 << 60) < 1 << 60:
                    return files
    return None


def _files(path: str, *, is_v1: bool) -> _Files:
    cached = ("active_file", "inactive_file")
    names: tuple[str, ...] = ("memory.current", "memory.max", "memory.stat", "memory.events")
    if is_v1:
        names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat", "memory.oom_control")
        path, cached = f"/memory{path}", ("total_active_file", "total_inactive_file")
    used, allowed, stat, events = (f"{_GROUPS}{path}/{name}" for name in names)
    return _Files(used, allowed, stat, events, cached)


# --- reading ---------------------------------------------------------------------------------------


def _text(path: str) -> str:
    """Return the content of a file; nothing where it cannot be read."""
    with suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


def _bytes(path: str) -> bytes:
    """Return the beginning of a small file, fast; nothing where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, 1024)
    except OSError:
        return b""
    finally:
        os.close(file)


def _parts(path: str) -> list[bytes]:
    with suppress(OSError), open(path, "rb") as file:
        if data := file.read().rstrip(b"\0"):
            return data.split(b"\0")
    return []


def _number(path: str) -> int | None:
    with suppress(ValueError):
        return int(_text(path))
    return None


def _table(path: str) -> dict[str, int]:
    """Return the lines of a file that are a name and a number."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _machine(name: str) -> int:
    """Return a figure of the machine's memory, in bytes; 0 if it cannot be had."""
    return _table("/proc/meminfo").get(f"{name}:", 0) * 1024
