"""The tasks' own log: one line for each thing that a run does, appended in one write.

A line is on its way to the file when ``write`` returns, so that the next moment may be the process's last.
Times are those of the machine's monotonic clock, which all its processes share and nobody moves.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

#: Environment of a worker: path of the log, and the name of this life of it (``w1/3``).
LOG, LIFE = "POISON_CHAOS_LOG", "POISON_CHAOS_LIFE"


class Line(NamedTuple):
    """One thing that a run did, or a worker that received a message.

    ``event``: ``received`` (no run yet), ``begin``, ``step`` (it still runs), ``end``, or ``kill`` (it
    is about to be deadly). ``run`` is a name that this start gave itself; ``at`` is in seconds, monotonic;
    ``wall`` is what the process took for the time.
    """

    event: str
    id: str
    run: str
    life: str
    pid: int
    on_trial: bool
    at: float
    wall: float


def write(event: str, id: str, run: str, *, on_trial: bool = False) -> None:
    """Append a line for the run that calls this."""
    line = Line(event, id, run, os.environ[LIFE], os.getpid(), on_trial, time.monotonic(), time.time())
    os.write(_file(os.environ[LOG]), json.dumps(line).encode() + b"\n")


@functools.cache
def _file(path: str) -> int:
    # O_APPEND: lines of different processes do not mix, and a fork may go on using it.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class TaskLog:
    """Reads the log while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self.ended: set[str] = set()
        self._read = 0

    def update(self) -> None:
        """Read what has come since."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return
        self._read += len(whole) + 1
        for text in whole.split(b"\n"):
            line = Line(*json.loads(text))
            self.lines.append(line)
            if line.event == "end":
                self.ended.add(line.id)
