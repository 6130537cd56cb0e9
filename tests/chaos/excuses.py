"""Which fault excuses what: one table, read by the judge and by docs/chaos.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.runs import Blow, Run

#: Seconds by which a clock that is read twice, on a busy machine, may be late.
SLACK = 1.0
#: Seconds between the end of a run, or of an outage after it, and the acknowledgement, at most.
CUT_SHORT = 2.0
#: Seconds between two heartbeats of a worker, on a busy machine.
HEARTBEAT = 4.0
#: Seconds without a heartbeat after which a worker is taken for dead: the default of the setting.
ACTIVATION = 10.0
#: Seconds until a client tries again whose server was away.
RECONNECT = 5.0
#: Seconds until a prefork worker does, which tells of no end before: Celery waits longer each time.
BACK_AT_WORK = 9.0
#: Seconds until a busy worker notices that a connection is closed.
NOTICE = 6.0
#: Seconds until an end that was acknowledged is forgotten (``worker/inflight.py``).
FORGETTING = 2.0
#: Seconds until one is that had ended just before an outage, or in it: for a copy that may come of that.
KEPT = 20.0
#: Seconds within which two deaths disturb each other.
TOGETHER = 3.0
#: How Celery itself ends after a cold shutdown: with gevent, while it starts, and with threads: there the
#: handler of the signal stops the pool, and the loop may receive one more task. And if it cannot start:
#: without a disk, or when a pool process dies before it works.
CELERYS_OWN = {
    "cold": ("BlockingSwitchOutError", "did_start_ok", "cannot schedule new futures after shutdown"),
    "disk-full": ("No space left on device",),
    "kill-child": ("Could not start worker processes",),
}
#: Marks what was convicted where nothing is tried (``poison_trial="off"``).
UNTRIED = "never tried"
#: Marks what Celery said when it gave up while it asked the other workers who they are.
IN_MINGLE = "(in mingle)"


class Wrong(StrEnum):
    """What must not happen."""

    LOST = "lost"
    TWICE = "done twice"
    OVERLAP = "run twice at one time"
    CONVICTED = "innocent, and convicted"
    FREE = "poison, and not convicted"
    KILLED = "killed once more than it may"
    ENDED = "a worker ended"
    LEFT = "left over"
    ACCUSED = "works, and is said not to"


@dataclass(frozen=True)
class Case:
    """One wrong: of which message, when it was sent, and the runs it is about.

    ``settled`` is when the first of them must have been acknowledged.
    """

    wrong: Wrong
    id: str
    text: str
    at: float = 0.0
    runs: tuple[Run, ...] = ()
    life: str = ""
    settled: float = 0.0

    @property
    def told(self) -> str:
        return " ".join(filter(None, (f"{self.wrong}:", self.id, self.text)))


Test = Callable[[Case, Blow], bool]


@dataclass(frozen=True)
class Excuse:
    """Faults that excuse a wrong if the test says so, with one broker or (empty) with each."""

    wrong: tuple[Wrong, ...]
    faults: tuple[str, ...]
    test: Test
    why: str
    broker: str = ""


def find_excuse(case: Case, blows: list[Blow], broker: str = "redis") -> str:
    """Return why something wrong is nobody's fault; the empty string if it is somebody's."""
    rows = (row for row in EXCUSES if case.wrong in row.wrong and row.broker in ("", broker))
    held = (row.why for row in rows for blow in blows if blow.name in row.faults and row.test(case, blow))
    return next(held, "")


def settled(run: Run, blows: Iterable[Blow]) -> float:
    """Return when a run that has ended must have been acknowledged, whatever was away meanwhile."""
    end = run.end or run.last
    at = end + CUT_SHORT
    for blow in sorted(blows, key=lambda blow: blow.began):
        struck = blow.name in OUTAGES and blow.struck(run.life)
        if struck and blow.began <= at and blow.ended >= end - BACK_AT_WORK:
            at = max(at, blow.ended + BACK_AT_WORK)
    return at


def silences(blows: Iterable[Blow]) -> Iterator[Blow]:
    """Yield where short outages, each begun before the last was over, kept a worker silent for too long."""
    short = sorted((blow for blow in blows if blow.name in SHORT), key=lambda blow: blow.began)
    for life in sorted({life for blow in short for life in blow.lives}):
        began, reached = 0.0, float("-inf")
        for blow in (blow for blow in short if blow.struck(life)):
            follows = blow.began <= reached + SLACK
            began, reached = began if follows else blow.began, max(reached, blow.ended)
            if follows and reached - began > ACTIVATION - HEARTBEAT:
                yield Blow(SILENCE, began, reached, (life,))


def _went_with_it(case: Case, blow: Blow) -> bool:
    """Whether the message is gone, and who would ask for its end, or nothing was heard that clears it."""
    ends = [run.end for run in case.runs if run.end is not None and run.end >= blow.began]
    never_cleared = not ends or case.settled > max(ends) + CUT_SHORT
    return case.id in blow.gone and (case.text == ITS_END or never_cleared)


def _could_not_tell_of_its_end(case: Case, blow: Blow) -> bool:
    """Whether the worker of a run ended while Redis was away, or soon after: only the broker heard."""
    return case.text in (REMEMBERED, EXPIRES, PARKED) and any(
        run.life in blow.lives and run.end is not None and run.end - SLACK <= blow.began <= case.settled
        for run in case.runs
    )


def _its_end_was_refused(case: Case, blow: Blow) -> bool:
    """Whether Redis lost the note of its end or quarantine, or that it was forgotten, which comes later."""
    before = KEPT if case.text == ITS_END else TOGETHER + FORGETTING
    return bool(case.id) and any(
        blow.meets(run.end or run.kill or 0.0, before=before, after=TOGETHER) for run in case.runs
    )


def _was_cut_short(case: Case, blow: Blow) -> bool:
    """Whether what did it first was struck before the acknowledgement was out."""
    first = case.runs[0]
    struck = first.pid in blow.pids if blow.name == "kill-child" else first.life in blow.lives
    return struck and first.end is not None and first.end - SLACK <= blow.began <= case.settled


def _was_away(case: Case, blow: Blow) -> bool:
    """Whether one of its runs was, or began too late, in a worker that was out of reach.

    It is a run until it can have been acknowledged. The heartbeat tells the worker what it was taken for.
    """
    return any(
        run.life in blow.lives and run.begin <= blow.ended + HEARTBEAT and blow.began <= max(run.last, until)
        for run, until in zip(case.runs, (case.settled, *[0.0] * len(case.runs)), strict=False)
    )


def _was_forgotten(case: Case, blow: Blow) -> bool:
    """Whether the first run was received, begun or acknowledged in what Redis lost."""
    first = case.runs[0]
    since, until = blow.began - SLACK, blow.ended + RECONNECT
    was_acknowledged = first.end is not None and first.end <= until and since <= case.settled
    return since <= first.begin <= until or was_acknowledged


def _was_given_to_another(case: Case, blow: Blow) -> bool:
    """Whether the second run began before the first's worker can have noticed anything."""
    first, second = sorted(case.runs, key=lambda run: run.begin)[:2]
    return any(blow.struck(run.life) for run in (first, second)) and blow.meets(second.begin, after=NOTICE)


def _came_while_the_ledger_was_away(case: Case, blow: Blow) -> bool:
    """Whether the second run began then: nobody could recognise the copy."""
    return blow.meets(sorted(case.runs, key=lambda run: run.begin)[1].begin, after=RECONNECT)


def _came_after_what_tells_it(case: Case, blow: Blow) -> bool:
    """Whether the ledger was emptied after the first run had ended: nothing tells its copies for such."""
    first, second = sorted(case.runs, key=lambda run: run.begin)[:2]
    return first.last <= blow.began <= second.begin


def _was_on_trial_there(case: Case, blow: Blow) -> bool:
    """Whether its cell may have been hit, at work, or, when it was convicted, before its first line.

    One that stood still was not seen at work any more by then.
    """
    at_work = any(
        run.on_trial
        and run.life in blow.lives
        and run.begin - SLACK <= blow.began <= (run.end or max(run.last, case.at)) + SLACK
        for run in case.runs
    )
    return at_work or (bool(blow.lives) and blow.meets(case.at, before=SLACK, after=TOGETHER))


def _was_in_two_deaths(case: Case, blow: Blow) -> bool:
    """Whether nothing is tried in this fleet, and it ran in this worker that died, and in another before."""
    cut_short = [run for run in case.runs if run.end is None]
    return case.text.endswith(UNTRIED) and len(cut_short) > 1 and cut_short[-1].life in blow.lives


def _stood_still(case: Case, blow: Blow) -> bool:
    """Whether its worker was kept from its work until a moment ago: the heartbeat tells."""
    return blow.struck(case.life) and blow.meets(case.at, after=BACK_AT_WORK + HEARTBEAT + SLACK)


def _came_together(case: Case, blow: Blow) -> bool:
    """Whether it came with a fault of a server, or one of the same worker."""
    return any(
        blow.struck(run.life) and blow.meets(run.kill or run.last, before=TOGETHER, after=TOGETHER)
        for run in case.runs
    )


#: What is left of runs whose acknowledgement may be lost: RabbitMQ may deliver a copy.
ENDS = "ends that wait for a copy"
#: Of a start that ended; of a message that is a candidate, or has a history; of one whose history expires.
ITS_END, REMEMBERED, EXPIRES = "its end is on record", "is remembered", "is remembered for a while"
#: Of a message that was parked: nothing has ended that.
PARKED = "is parked, or was published again"
#: Not a fault but what comes of many: the end of a worker, whatever ended it.
DEATH = "death"
#: The fleet gate is closed, as the journal tells.
GATE = "fleet-gate"
OF_WORKERS = ("kill-main", "kill-group", "kill-container")
OF_CELLS = ("kill-cell", "kill-watcher")
LEAVES = ("warm", "cold", "deploy")
#: What comes of several short ones, as :func:`silences` tells.
SILENCE = "silence"
SILENCES = ("stop-15", "net-freeze-15", "net-cut-5", "net-cut-15", "net-half-open", SILENCE)
SWITCHES = ("redis-failover", "redis-switch")

OF_CONNECTIONS = (
    "rabbit-kill", "rabbit-pause", "rabbit-close", "net-drop", "net-cut-5", "net-cut-15", "net-freeze-4",
    "net-freeze-15", "net-half-open",
)  # fmt: skip
#: What keeps a ledger from answering that is not the broker.
OF_THE_LEDGER = (
    "redis-pause", "redis-kill", "redis-down", "redis-lost-second", "redis-full", "reshard", "failover",
    "other-master", "disk-full",
)  # fmt: skip
#: What keeps the heartbeats of a worker, or of all, from Redis for less than it takes to be taken for dead.
SHORT = (*OF_THE_LEDGER[:-1], "net-freeze-4", "stop-4")
#: What keeps an acknowledgement from getting out.
OUTAGES = (*SWITCHES, *OF_THE_LEDGER[:-1], *OF_CONNECTIONS, "net-slow", "stop-4", "wedge")

EXCUSES = (
    Excuse((Wrong.LOST,), ("redis-empty",), lambda case, blow: case.id in blow.gone,
           "it was in Redis when that was emptied"),
    Excuse((Wrong.LOST, Wrong.FREE), ("redis-lost-second",), lambda case, blow: case.id in blow.gone,
           "it was parked in the second that Redis lost", "rabbitmq"),
    Excuse((Wrong.FREE, Wrong.KILLED), ("redis-empty",), lambda case, blow: case.at <= blow.ended,
           "its history was in Redis when that was emptied"),
    Excuse((Wrong.LOST, Wrong.FREE), ("redis-lost-second", *SWITCHES),
           lambda case, blow: blow.meets(case.at, before=CUT_SHORT),
           "it was sent in the seconds that Redis lost"),
    Excuse((Wrong.TWICE,), (DEATH, "kill-child"), _was_cut_short,
           "its worker died before the acknowledgement was out"),
    Excuse((Wrong.TWICE, Wrong.OVERLAP), SILENCES, _was_away,
           "its worker was out of reach, and taken for dead"),
    Excuse((Wrong.TWICE, Wrong.OVERLAP), SWITCHES, _came_together,
           "it was received from the old master"),
    Excuse((Wrong.TWICE, Wrong.OVERLAP), ("redis-lost-second",), _was_forgotten,
           "it was received in the second that Redis lost"),
    Excuse((Wrong.TWICE, Wrong.OVERLAP), OF_CONNECTIONS, _was_given_to_another,
           "its worker had not noticed yet that RabbitMQ had closed its connection", "rabbitmq"),
    Excuse((Wrong.TWICE, Wrong.OVERLAP), OF_THE_LEDGER, _came_while_the_ledger_was_away,
           "a copy of it came while the ledger was away", "rabbitmq"),
    Excuse((Wrong.TWICE,), ("redis-empty",), _came_after_what_tells_it,
           "the record that identifies a copy was in Redis when that was emptied", "rabbitmq"),
    Excuse((Wrong.CONVICTED,), OF_CELLS, _was_on_trial_there,
           "its cell was killed from outside"),
    Excuse((Wrong.CONVICTED,), (DEATH,), _was_in_two_deaths,
           "it ran in two workers that died, which convicts where nothing is tried (`--trial off`)"),
    Excuse((Wrong.KILLED,), (*OF_WORKERS, *OF_CELLS, *LEAVES, *OUTAGES, "kill-child", "stop-15", GATE),
           _came_together, "a fault came at the same time, or the fleet gate was closed"),
    Excuse((Wrong.KILLED,), (DEATH,),
           lambda case, blow: any(run.on_trial for run in case.runs) and _came_together(case, blow),
           "its worker died beside its trial, of something else"),
    Excuse((Wrong.LEFT,), ("redis-empty",), _went_with_it,
           "its message was in Redis when that was emptied"),
    Excuse((Wrong.LEFT,), SILENCES,
           lambda case, blow: case.text in (ITS_END, EXPIRES) and _was_away(case, blow),
           "its worker was taken for dead: its end, or its history, stays until it expires"),
    Excuse((Wrong.LEFT,), ("redis-full", "redis-lost-second"), _its_end_was_refused,
           "Redis did not keep the note of its end, or that it was forgotten"),
    Excuse((Wrong.LEFT,), (DEATH,), _could_not_tell_of_its_end,
           "its worker ended before it could tell Redis how it had ended"),
    Excuse((Wrong.LEFT,), (DEATH, *OUTAGES), lambda case, blow: case.text.startswith(ENDS),
           "on RabbitMQ they stay for ten minutes"),
    Excuse((Wrong.ENDED,), tuple(CELERYS_OWN),
           lambda case, blow: blow.struck(case.life)
           and any(end in case.text for end in CELERYS_OWN[blow.name]),
           "Celery itself ends so, or could not start"),
    Excuse((Wrong.ENDED,), (*OF_CONNECTIONS, *OF_THE_LEDGER),
           lambda case, blow: "OperationalError" in case.text and case.text.endswith(IN_MINGLE),
           "Celery itself gives up if its broker goes away in mingle"),
    Excuse((Wrong.ENDED,), (*OF_WORKERS, *LEAVES),
           lambda case, blow: case.life in blow.lives and blow.meets(case.at, before=SLACK, after=NOTICE),
           "it was killed, or asked to leave"),
    Excuse((Wrong.ACCUSED,), (*OUTAGES, "stop-15"), _stood_still,
           "it did not work, or had just begun to again"),
)  # fmt: skip
