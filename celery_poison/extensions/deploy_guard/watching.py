"""What the active monitor does: who waits too long goes on, and pauses end with their version."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import randrange

from celery.utils.log import get_logger

from celery_poison.basics.text import count_of
from celery_poison.extensions.deploy_guard.first_runs import Over
from celery_poison.extensions.deploy_guard.version_record import VersionRecord
from celery_poison.extensions.holds.pauses import Pause, paused_versions
from celery_poison.ledger import Ledger
from celery_poison.ledger.fleet_model import WorkerRecord

logger = get_logger("celery_poison")

#: Seconds between two rounds; and between two times at which a parked message of a task is let go.
PAUSE, BETWEEN = 1.0, 0.5
#: Seconds without a waiting message after which none of a task waits any more.
CALM = 3.0


def sentence_of(pause: Pause, waiting: int) -> str:
    """Return a pause for a version as a sentence for people."""
    return f"{pause.story}, {count_of(waiting, 'message')} wait{'s' if waiting == 1 else ''} untouched"


class FirstRunsWatch:
    """The first runs of a fleet, as its active monitor sees them.

    Args:
        activation: seconds of silence after which a worker counts as dead.
        patience: seconds for which messages wait at most.
    """

    def __init__(self, ledger: Ledger, activation: float, patience: float) -> None:
        self._ledger = ledger
        self._queries = ledger.read
        self._activation_ms, self._patience = int(activation * 1000), patience
        #: When the next parked message of a task may be let go; by task.
        self._next: dict[str, float] = {}
        #: How many messages of each task were parked in the last round.
        self._counts = Counter[str]()
        #: Since when messages of a task have waited, and when that was seen last.
        self._waiting: dict[str, tuple[float, float]] = {}

    def _workers(self) -> list[WorkerRecord]:
        return [worker for worker in self._queries.workers(self._activation_ms) if worker.alive]

    def records(self, workers: Iterable[WorkerRecord]) -> list[VersionRecord]:
        """Return the records of the code versions that these workers run."""
        versions = {worker.code_version for worker in workers} - {""}
        return [VersionRecord(self._ledger, version) for version in sorted(versions)]

    # --- parked messages that are published again ----------------------------------------------

    def keeps_waiting(self) -> Callable[[str, str], bool]:
        """Return a function of queue and task: whether their parked messages stay, in this round.

        While no first run has its turn, one message of each task goes on to have it, and now and then another
        one: it may be a suspect, which gets none. Of a task that is paused for a version, some go on to
        workers of others, if there are any.
        """
        workers = self._workers()
        records, pauses = self.records(workers), paused_versions(self._ledger)
        may_go: dict[str, range | None] = {}
        counts, self._counts = self._counts, Counter[str]()

        def stays(queue: str, task: str) -> bool:
            if task not in may_go:
                number = self._may_go(task, workers, records, pauses)
                first = randrange(max(1, counts[task] - (number or 0) + 1))
                may_go[task] = None if number is None else range(first, first + number)
            index, chosen = self._counts[task], may_go[task]
            self._counts[task] += 1
            if chosen is not None and index in chosen:
                self._next[task] = time.monotonic() + BETWEEN
            return chosen is not None and index not in chosen

        return stays

    def _may_go(
        self, task: str, workers: list[WorkerRecord], records: list[VersionRecord], pauses: list[Pause]
    ) -> int | None:
        """Return how many parked messages of a task may be published in this round; None: all."""
        versions = {pause.version for pause in pauses if pause.name == task}
        is_early = time.monotonic() < self._next.get(task, 0.0)
        if versions:
            others = (each.concurrency for each in workers if each.code_version not in versions)
            return 0 if is_early else sum(max(1, slots) for slots in others)
        begun = [seen for record in records if (seen := record.look(task)).raw]
        undecided = [seen for seen in begun if seen.runs.over is Over.NOT]
        if not undecided:
            return None
        return int(not is_early and not any(seen.is_busy for seen in undecided))

    # --- rounds --------------------------------------------------------------------------------

    def round(self, fence: int) -> None:
        """Let go what has waited for too long, and end the pauses of versions that run nowhere any more.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        tasks = {parked.start.task for _, parked in self._queries.parked_now()}
        pauses, now = paused_versions(self._ledger), time.monotonic()
        before = {task: seen for task, seen in self._waiting.items() if now - seen[1] < CALM}
        self._waiting = before | {task: (before.get(task, (now, now))[0], now) for task in tasks}
        late = [task for task, (since, _) in self._waiting.items() if now - since >= self._patience]
        if not late and not pauses:
            return
        workers = self._workers()
        for record in self.records(workers):
            for task in late:
                self._let_go(record, task)
        living = {worker.code_version for worker in workers}
        for pause in pauses if living else ():
            if pause.version not in living:
                self._lift(pause)

    def _let_go(self, record: VersionRecord, task: str) -> None:
        seen = record.look(task)
        is_open = bool(seen.raw) and seen.runs.over is Over.NOT
        if is_open and seen.now - seen.runs.began >= 1000 * self._patience:
            record.change(task, seen, replace(seen.runs, over=Over.LATE))
            said = "celery_poison: %s of %s waited for %g s for its first runs, and goes on as ever"
            logger.warning(said, task, record.version, self._patience)

    def _lift(self, pause: Pause) -> None:
        said = f"task {pause.name} for {pause.version}: no worker runs that any more"
        if VersionRecord(self._ledger, pause.version).lift(pause.name, said):
            logger.warning("celery_poison: %s; it is not paused any more", said)
