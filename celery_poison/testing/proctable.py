"""Who is running: the few questions that the harness asks the process table.

Linux answers them in /proc, so that no further package is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    state: str  #: one letter; Z is a zombie: dead, but not yet waited for by its parent
    parent: int
    group: int
    session: int


def processes() -> Iterator[Process]:
    """Every process that is alive now (zombies are not)."""
    for entry in PROC.iterdir():
        found = read(int(entry.name)) if entry.name.isdigit() else None
        if found and found.state not in "ZX":
            yield found


def read(pid: int) -> Process | None:
    """One row of the table; None when there is no such process."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself hold spaces and parentheses: read on behind the last one.
    state, parent, group, session = stat[stat.rindex(")") + 2 :].split()[:4]
    return Process(pid, state, int(parent), int(group), int(session))


def children_of(pid: int) -> list[int]:
    return sorted(p.pid for p in processes() if p.parent == pid)


def members_of_session(session: int) -> list[int]:
    return sorted(p.pid for p in processes() if p.session == session)


def carrying(variable: str, value: str) -> list[int]:
    """The processes that were started with this environment variable, whichever way they descend.

    A mark in the environment is inherited by children, by their fresh sessions and by what they
    execute, so it finds what a parent id or a session id no longer does. Other users' processes and
    this process itself are never among them.
    """
    needle = f"{variable}={value}".encode()
    return sorted(p.pid for p in processes() if p.pid != os.getpid() and needle in _environment(p.pid))


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
