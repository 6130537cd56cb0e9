"""The play: poison among healthy work, one release, one fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from celery import states
from celery.result import AsyncResult

from celery_poison import Quarantine
from celery_poison.demo.app import POISONS, SEGFAULT, SIGKILL, Poison
from celery_poison.demo.report import Decision, Findings
from celery_poison.demo.screen import Screen, Snapshot, Watch
from celery_poison.demo.stage import Load, Stage
from celery_poison.testing.basics import Interrupted, Interruptions

#: Seconds after which a promise that has not come true counts as broken: that everything is settled, that a
#: decision is carried out, that a suspicion is closed whose message has ended.
PATIENCE, DECISION_PATIENCE, CLEARING = 90.0, 30.0, 5.0
TICK = 0.15
ACTOR = "demo"


class Story:
    """Looks on until everything is settled, decides twice, and gathers what happened."""

    def __init__(self, stage: Stage, load: Load, screen: Screen, interruptions: Interruptions) -> None:
        self._stage, self.load, self._screen = stage, load, screen
        self._interruptions = interruptions
        self._quarantine = Quarantine(stage.app)
        self.watch = Watch(stage, load, self._quarantine)

    def play(self) -> Findings:
        self._wait(self._is_settled, PATIENCE)
        before = self._gather()
        released = self._release(SEGFAULT, before)
        failed = self._fail(SIGKILL, before)
        # What was released is cleared a moment after its caller has the result.
        self._wait(lambda _: not self._candidates(), CLEARING)
        self._screen.show(self.watch.look(), last=True)
        return replace(before, released=released, failed=failed, candidates=self._candidates())

    def _wait(self, over: Callable[[Snapshot], bool], patience: float) -> bool:
        deadline = self.watch.seconds + patience
        while self.watch.seconds < deadline and not self._stage.workers.gave_up:
            snapshot = self.watch.look()
            self._screen.show(snapshot)
            if over(snapshot):
                return True
            self._interruptions.pause(TICK)
        return False

    def _is_settled(self, snapshot: Snapshot) -> bool:
        # A healthy task in quarantine is a broken promise, but nothing to wait for.
        finished = snapshot.waiting == snapshot.strangers and snapshot.kept == len(POISONS)
        return finished and not self._candidates()

    def _candidates(self) -> tuple[str, ...]:
        return tuple(record.id for record in self._quarantine.list(candidates=True))

    def _gather(self) -> Findings:
        results = {n: AsyncResult(id, app=self._stage.app) for n, id in self.load.healthy.items()}
        return Findings(
            results={n: found.result if found.successful() else None for n, found in results.items()},
            starts=self._stage.tally.starts(),
            kills=self._stage.tally.counts("killed"),
            quarantined={record.id: record for record in self._quarantine.list()},
            candidates=self._candidates(),
            poison_ids=self.load.poison,
        )

    def _release(self, poison: Poison, before: Findings) -> Decision | None:
        record = before.kept(poison.name)
        if record is None:
            return None
        self._stage.tally.repair(poison)
        self._screen.note(f"{poison.name} was repaired and is released: it runs once more")
        (outcome,) = self._quarantine.release([record.mid], actor=ACTOR, note="the task was repaired")
        if not outcome.done:
            return Decision(poison.name, False, False, outcome.error)
        result = AsyncResult(record.id, app=self._stage.app)
        if not self._wait(lambda _: result.state == states.SUCCESS, DECISION_PATIENCE):
            return Decision(poison.name, True, False, "no result arrived")
        self.watch.released.add(poison.name)
        self._screen.show(self.watch.look())
        return Decision(poison.name, True, True, repr(result.result))

    def _fail(self, poison: Poison, before: Findings) -> Decision | None:
        record = before.kept(poison.name)
        result = AsyncResult(self.load.poison[poison.name], app=self._stage.app)
        if record is None or result.ready():
            return None
        self._screen.note(f"{poison.name} is given up: somebody waits for its result and must hear of it")
        (outcome,) = self._quarantine.fail([record.mid], actor=ACTOR, note="nobody needs it")
        if not outcome.done:
            return Decision(poison.name, False, False, outcome.error)
        if not self._wait(lambda _: result.ready(), DECISION_PATIENCE):
            return Decision(poison.name, True, False, "waited in vain")
        try:
            return Decision(poison.name, True, False, repr(result.get()))
        except Exception as error:
            return Decision(poison.name, True, True, type(error).__name__, str(error))


def play_plain(
    stage: Stage, load: Load, screen: Screen, interruptions: Interruptions, seconds: float
) -> Snapshot:
    """Watch the same load without the plugin for ``seconds``, or until somebody has seen enough."""
    watch = Watch(stage, load, None)
    with suppress(Interrupted):
        while watch.seconds < seconds:
            screen.show(watch.look())
            interruptions.pause(TICK)
    last = watch.look()
    screen.show(last, last=True)
    # Waiting for these workers to finish their tasks would only let them be killed again.
    stage.grace = 0.0
    return last
