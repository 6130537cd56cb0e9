"""What the kernel tells about processes and the memory of control groups, read from /proc.

Nothing here raises: what cannot be read is unknown.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import StrEnum

_BOOT = "/proc/sys/kernel/random/boot_id"
#: Where the kernel counts whom it killed for want of memory: of a control group, or of the machine.
_COUNTS = ("/sys/fs/cgroup/", "/proc/vmstat")
#: Processes that are looked at to find a process's descendants.
_MOST = 512


class Process(StrEnum):
    """What became of a process of this machine."""

    GONE = "gone"
    STOPPED = "stopped"
    LIVES = "lives"


def place() -> str:
    """Return what all processes have in common that know each other by process id; empty: unknown."""
    try:
        return f"{_text(_BOOT).strip()}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def begun(pid: int) -> int:
    """Return when a process began, in ticks of its machine's clock; 0: there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def became_of(pid: int, began: int) -> Process:
    """Return what became of a process of this place that began at ``began``."""
    fields = _stat(pid)
    if not fields or int(fields[19]) != began or fields[0] in "ZX":
        return Process.GONE
    return Process.STOPPED if fields[0] in "Tt" else Process.LIVES


def family(pid: int) -> list[int]:
    """Return a process and its descendants, as far as they are in reach of each other."""
    found, unread = [pid], [pid]
    while unread and len(found) < _MOST:
        of = unread.pop()
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{of}/task"):
                children = [int(child) for child in _text(f"/proc/{of}/task/{thread}/children").split()]
                found += children
                unread += children
    return found


def memory(pid: int) -> tuple[int, int]:
    """Return a process's resident memory now, and the most that it has had, in KiB; 0: unknown."""
    now = peak = 0
    with suppress(OSError, ValueError):
        for line in _text(f"/proc/{pid}/status").splitlines():
            if line.startswith("VmHWM:"):
                peak = int(line.split()[1])
            elif line.startswith("VmRSS:"):
                return int(line.split()[1]), peak
    return now, peak


def total_kb() -> int:
    """Return the machine's memory in KiB; 0: unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(_text("/proc/meminfo").split()[1])
    return 0


def counter(path: str) -> str:
    """Return what is the same for everybody who sees this very file of kills; empty: it cannot be had."""
    try:
        if not os.path.normpath(path).startswith(_COUNTS):
            return ""
        seen = os.stat(path)
        return f"{_text(_BOOT).strip()}:{seen.st_dev}:{seen.st_ino}"
    except OSError:
        return ""


def kills(path: str) -> int | None:
    """Return how many processes the kernel has killed for want of memory, by a file of its; None: unknown."""
    with suppress(OSError, ValueError):
        for line in _text(path).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name: the first is the state."""
    with suppress(OSError):
        return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return []


def _text(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()
