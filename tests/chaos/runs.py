"""What the judge judges by: the tasks' own log, messages and their runs, and what was done to the fleet.

The tasks append one line for each thing that a run does, in one write: it is on its way to the file when that
returns, so that the next moment may be the process's last. Times are those of the machine's monotonic clock,
which all its processes share and nobody moves.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

#: Environment of a worker: path of the log, and the name of this life of it (``w1/3``).
LOG, LIFE = "POISON_CHAOS_LOG", "POISON_CHAOS_LIFE"


class Line(NamedTuple):
    """One thing that a run did.

    ``event``: ``begin``, ``step`` (it still runs), ``end``, or ``kill`` (it is about to be deadly). ``run``
    is a name that this start gave itself; ``at`` is in seconds, monotonic.
    """

    event: str
    id: str
    run: str
    life: str
    pid: int
    on_trial: bool
    at: float


def write_line(event: str, id: str, run: str, *, on_trial: bool = False) -> None:
    """Append a line for the run that calls this."""
    line = Line(event, id, run, os.environ[LIFE], os.getpid(), on_trial, time.monotonic())
    os.write(_file(os.environ[LOG]), json.dumps(line).encode() + b"\n")


@functools.cache
def _file(path: str) -> int:
    # O_APPEND: lines of different processes do not mix, and a fork may go on using it.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def read_lines(path: Path, event: str = "") -> list[Line]:
    """Return what the log holds by now: all of it, or the lines of one event."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    beginning = f'["{event}'.encode()
    return [Line(*json.loads(text)) for text in whole.split(b"\n") if text.startswith(beginning)]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    ``at`` is in seconds after the load has begun; ``worker`` the number of the one it strikes, from 1, if
    it strikes one; ``dice`` is from 0 to 1, for what else there is to choose.
    """

    at: float
    name: str
    worker: int
    dice: float


@dataclass
class Blow:
    """A fault as it came, or a death: seconds, monotonic; the lives and processes that it struck.

    ``gone`` are the ids of the messages that went with what it emptied.
    """

    name: str
    began: float
    ended: float = float("inf")
    lives: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    gone: tuple[str, ...] = ()
    note: str = ""

    def struck(self, life: str) -> bool:
        """Whether it was done to that life, or to a server of all."""
        return not self.lives or life in self.lives

    def meets(self, at: float, before: float = 0.0, after: float = 0.0) -> bool:
        """Whether that was meanwhile, or so many seconds before or after."""
        return self.began - before <= at <= self.ended + after


@dataclass
class Run:
    """One start of one message, as its own lines tell; times in seconds, monotonic.

    ``last`` is the last sign of life; ``end`` and ``kill`` are None where it did not come to that.
    """

    id: str
    life: str
    pid: int
    on_trial: bool
    begin: float
    last: float
    end: float | None = None
    kill: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A message: what it is (``healthy``, or the name of a poison), when, and whether the broker said yes.

    What failed half-way may have arrived or not. It is tried again under another id, so that no
    message is ever there twice.
    """

    kind: str
    at: float
    sure: bool


@dataclass(frozen=True)
class Facts:
    """Everything that is known of one run of the program.

    Attributes:
        sent: by task id.
        runs: by task id, in the order of their beginnings.
        blows: faults, and the deaths of workers (``death``).
        broker: of the fleet.
        tried: whether it tries its suspects.
        convicted: task ids that were in quarantine at any time, and when each was seen there first.
        left: what is left when all is quiet, and after the last worker has left.
        known: task ids that the ledger still knows then, by what of them.
        accused: lives of workers, the word for what was wrong with them, and when it was said.
        journal: every entry, and when it was made.
        complaints: lives of workers, and what Celery said when it gave up; or no life, and a fault that
            could not be done.
    """

    sent: Mapping[str, Sent]
    runs: Mapping[str, list[Run]]
    blows: list[Blow]
    broker: str = "redis"
    tried: bool = True
    convicted: Mapping[str, float] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, set[str]] = field(default_factory=dict)
    complaints: list[tuple[str, str]] = field(default_factory=list)
    accused: list[tuple[str, str, float]] = field(default_factory=list)
    journal: list[tuple[float, dict[str, str]]] = field(default_factory=list)


def runs_of(lines: Iterable[Line]) -> dict[str, list[Run]]:
    """Put the lines of the task log together."""
    runs: dict[str, Run] = {}
    for line in lines:
        run = runs.setdefault(line.run, Run(line.id, line.life, line.pid, line.on_trial, line.at, line.at))
        run.last = line.at
        if line.event == "end":
            run.end = line.at
        elif line.event == "kill":
            run.kill = line.at
    found = defaultdict(list)
    for run in sorted(runs.values(), key=lambda run: run.begin):
        found[run.id].append(run)
    return dict(found)
