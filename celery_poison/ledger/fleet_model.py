"""The typed records of the fleet: its workers, its gate, and what was done about a death."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from celery_poison.basics.text import count_of, when
from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.model import Record
from celery_poison.portrait import LET_IT_DELAY, STUCK, Condition, Portrait, explain, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord(Record):
    """One incarnation of a worker, as its last heartbeat described it.

    Attributes:
        queues: that it consumes, with commas between them;
        paused: those that it does not consume since they are paused.
        unguarded, ledger_errors: since it started: tasks without the ledger's knowledge, and errors of it;
        troubled_at: when either was raised last.
        forgotten_at: when it found that its Redis had forgotten it: emptied, or an older copy.
        guarded_tasks, unguarded_tasks: how many tasks it guards; names of those that it does not.
        observed_tasks: names of guarded ones that it only observes, since they acknowledge early.
        noticed_by: what its death would be noticed by: its ``connection``, or only its ``heartbeat``.
        heard_at: when it last polled its broker, received a message or had no room for one; None: not known.
        room: how many suspects more could begin there; cells: how trials there are less than they might be.
        code_version: of the user's code (``poison_code_version``).
        portrait: how it saw itself; None: an older version, which draws none.
        stack: where its event loop stands, or did in the last ten minutes, innermost call first.
        frozen_since: when it was taken for dead, though it is connected still; None: it was not.
    """

    worker: str
    node: str = ""
    host: str = ""
    pid: int = 0
    pool: str = ""
    concurrency: int = 0
    queues: str = ""
    paused: str = ""
    started_at: float | None = None
    last_beat: float | None = None
    alive: bool = True
    stopping: bool = False
    unguarded: int = 0
    ledger_errors: int = 0
    troubled_at: float | None = None
    forgotten_at: float | None = None
    guarded_tasks: int = 0
    unguarded_tasks: tuple[str, ...] = ()
    observed_tasks: tuple[str, ...] = ()
    noticed_by: str = "heartbeat"
    heard_at: float | None = None
    room: int = 0
    cells: str = ""
    code_version: str = ""
    portrait: Portrait | None = None
    stack: tuple[str, ...] = ()
    frozen_since: float | None = None

    def condition(self, *, is_deaf: bool = False) -> Condition:
        """Return whether it works, or why not."""
        if self.frozen_since is not None:
            return Condition.FROZEN
        facts = {"is_alive": self.alive, "is_stopping": self.stopping, "is_deaf": is_deaf}
        return judge(self.portrait, **facts)

    @property
    def trouble(self) -> str:
        """A sentence on why it does not work; empty where it works, leaves, or is silent."""
        condition = self.condition()
        if condition is Condition.FROZEN:
            which = f" (process {self.pid} on {self.host})" if self.host else ""
            why = (
                f"it was silent, so that it was taken for dead at {when(self.frozen_since)}, and is connected"
                f" still; cure: restart it{which}"
            )
        elif self.portrait is None or condition not in STUCK:
            return ""
        else:
            why = explain(self.portrait, condition)
        return f"worker {self.worker} does not work ({condition}): {why}"

    @property
    def filled(self) -> str:
        """A sentence on what waits here for its time and keeps others out; empty where nothing does."""
        seen = self.portrait
        if not self.alive or seen is None or not seen.queues_filled:
            return ""
        return (
            f"worker {self.worker} begins nothing more of {count_of(seen.queues_filled, 'queue')}: it is full"
            f" of {count_of(seen.delayed, 'message')} with an ETA, a countdown or a retry's pause; cure:"
            f" {LET_IT_DELAY}"
        )

    @property
    def idle_story(self) -> str:
        """A sentence where it works and was told to consume no queue (``cancel_consumer``); else empty."""
        has_begun = self.portrait is not None and self.portrait.loop_turned_ago is not None
        works = has_begun and self.condition() is Condition.WORKING
        if self.queues or self.paused or not works:
            return ""
        cure = "celery control add_consumer QUEUE, or restart it"
        return f"worker {self.worker} lives and consumes no queue; cure: {cure}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "condition": self.condition()}

    @property
    def consumed(self) -> list[str]:
        """Names of the queues that it consumes."""
        return [name for name in self.queues.split(",") if name]

    @property
    def all_queues(self) -> list[str]:
        """Names of the queues that it consumes, and of those that are paused."""
        return [*self.consumed, *(name for name in self.paused.split(",") if name)]


def consumed_queues(workers: Iterable[WorkerRecord]) -> set[str]:
    """Return the names of the queues that living workers consume, also those that are about to stop."""
    return {name for worker in workers if worker.alive for name in worker.consumed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The death of one worker and what was done about it.

    Attributes:
        how: how it was noticed: ``gone`` (its connections), ``silent`` or ``frozen`` (connected, and silent).
        died_at: when it was last known to live, in seconds of Redis' clock.
        flagged: messages that became candidates.
        reconnected: the worker had lost its broker connection once.
        release: version of the user's code that it ran (``poison_code_version``).
        host, pid: of its main process; an older version does not record them.
        returned: queue -> number of messages that were put back into it; what a broker puts back itself,
            as RabbitMQ does, is not counted.
        evidence: what is known about the death.
    """

    incident: str
    worker: str
    cause: str
    how: str = ""
    died_at: float | None = None
    noticed_at: float | None = None
    last_beat: float | None = None
    finished_at: float | None = None
    flagged: int = 0
    put_back: int = 0
    returned: Mapping[str, int] = field(default_factory=dict)
    queues: str = ""
    reconnected: bool = False
    release: str = ""
    host: str = ""
    pid: int = 0
    evidence: Evidence = NO_EVIDENCE

    @property
    def took(self) -> float | None:
        """Seconds from the death to the end of the recovery; None while it goes on."""
        known = self.finished_at is not None and self.died_at is not None
        return self.finished_at - self.died_at if known else None  # type: ignore[operator]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "evidence": self.evidence.as_dict(), "took": self.took}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecord(Record):
    """The fleet gate, as it stands or stood last; times are seconds of Redis' clock.

    Attributes:
        closed: at this moment only a death on trial convicts.
        until: when it opens by itself, if no more workers die.
        deaths: workers that had died when it closed, or when the last one died,
        fleet: and of how many.
        lifted_by: who lifted it last; empty: its time was over.
    """

    closed: bool = False
    closed_at: float | None = None
    until: float | None = None
    deaths: int = 0
    fleet: int = 0
    lifted_at: float | None = None
    lifted_by: str = ""

    @property
    def story(self) -> str:
        return f"{self.deaths} of {self.fleet} workers died"
