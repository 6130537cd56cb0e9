"""Which fault excuses what: one table, read by the judge and by docs/chaos.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from celery_poison.chaos.runs import Blow, Run

#: ``poison_activation_interval``: who is silent for longer counts as dead.
ACTIVATION = 10.0
#: Seconds by which a clock that is read twice, on a busy machine, may be late.
SLACK = 1.0
#: Seconds between the end of a run and the acknowledgement, at most; what dies meanwhile runs again.
CUT_SHORT = 2.0
#: Seconds within which two deaths disturb each other.
TOGETHER = 3.0


class Wrong(Enum):
    """What must not happen."""

    LOST = "lost"
    TWICE = "done twice"
    OVERLAP = "run twice at one time"
    CONVICTED = "innocent, and convicted"
    FREE = "poison, and not convicted"
    KILLED = "killed once more than it may"
    ENDED = "a worker ended"
    LEFT = "left over"


@dataclass(frozen=True)
class Case:
    """One wrong: of which message, when it was sent, and the runs it is about."""

    wrong: Wrong
    id: str
    text: str
    at: float = 0.0
    runs: tuple[Run, ...] = ()
    life: str = ""


Test = Callable[[Case, Blow], bool]


@dataclass(frozen=True)
class Excuse:
    """Faults, by the first word of their names or the whole, that excuse a wrong if the test says so."""

    wrong: tuple[Wrong, ...]
    faults: tuple[str, ...]
    test: Test
    why: str

    def holds(self, case: Case, blow: Blow) -> bool:
        return case.wrong in self.wrong and blow.name in self.faults and self.test(case, blow)


def find_excuse(case: Case, blows: list[Blow]) -> str:
    """Return why something wrong is nobody's fault; the empty string if it is somebody's."""
    return next((row.why for row in EXCUSES for blow in blows if row.holds(case, blow)), "")


def _was_sent_before(case: Case, blow: Blow) -> bool:
    return case.at <= blow.ended


def _was_sent_just_before(case: Case, blow: Blow) -> bool:
    return blow.began - CUT_SHORT <= case.at <= blow.ended


def _died_at_its_end(case: Case, blow: Blow) -> bool:
    """Whether what did it first died before it could be acknowledged."""
    first = case.runs[0]
    struck = first.pid in blow.pids if blow.name == "kill-child" else first.life in blow.lives
    return struck and first.end is not None and -SLACK <= blow.began - first.end <= CUT_SHORT


def _was_away_for_long(case: Case, blow: Blow) -> bool:
    """Whether one of its runs was in a worker that was silent for longer than the activation interval."""
    return blow.seconds > ACTIVATION - SLACK and any(
        run.life in blow.lives and run.begin <= blow.ended and blow.began <= run.last for run in case.runs
    )


def _was_on_trial_there(case: Case, blow: Blow) -> bool:
    return any(
        run.on_trial and run.life in blow.lives and run.begin - SLACK <= blow.began <= run.last + SLACK
        for run in case.runs
    )


def _struck_its_worker(case: Case, blow: Blow) -> bool:
    return case.life in blow.lives and blow.began - SLACK <= case.at <= blow.ended + 2 * SLACK


def _came_together(case: Case, blow: Blow) -> bool:
    return all(blow.began - TOGETHER <= (run.kill or run.last) <= blow.ended + TOGETHER for run in case.runs)


KILLS = ("kill-main", "kill-group", "kill-container", "kill-child", "kill-cell", "kill-watcher")
STOPS = ("stop-4", "stop-15")
LEAVES = ("warm", "cold", "deploy")
OUTAGES = ("redis-pause", "redis-kill")
#: Not a fault but what comes of many: the end of a worker, whatever ended it.
DEATH = "death"

EXCUSES = (
    Excuse((Wrong.TWICE,), (DEATH, "kill-child"), _died_at_its_end,
           "its worker died before the acknowledgement was out"),
    Excuse((Wrong.TWICE, Wrong.OVERLAP), ("stop-15",), _was_away_for_long,
           "its worker was silent for longer than the activation interval"),
    Excuse((Wrong.CONVICTED,), ("kill-cell", "kill-watcher"), _was_on_trial_there,
           "somebody killed its cell from outside"),
    Excuse((Wrong.KILLED,), (*KILLS, *STOPS, *LEAVES, *OUTAGES), _came_together,
           "a fault came at the same time"),
    Excuse((Wrong.ENDED,), (*KILLS, *LEAVES), _struck_its_worker, "it was killed, or asked to leave"),
)  # fmt: skip
