"""The play: poison among healthy work, and then one release and one fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from celery import Celery, states
from celery.exceptions import TimeoutError as NoResult
from celery.result import AsyncResult

from celery_poison import Quarantine
from celery_poison.demo.interrupt import Interruptions
from celery_poison.demo.load import Load
from celery_poison.demo.poisons import POISONS, Poison
from celery_poison.demo.promises import Decision, Findings
from celery_poison.demo.screen import Screen
from celery_poison.demo.stage import Stage
from celery_poison.demo.watch import Snapshot, Watch

#: Seconds after which a promise that has not come true counts as broken.
PATIENCE = 90.0
#: Seconds in which a suspicion should be closed whose message has ended.
CLEARING = 5.0
DECISION_PATIENCE = 30.0
TICK = 0.15

TO_RELEASE = POISONS[1]
TO_FAIL = POISONS[0]
ACTOR = "demo"


class Caller:
    """Somebody who waits for the result of a task from the moment it was sent."""

    def __init__(self, app: Celery, id: str) -> None:
        self.heard = self.details = ""
        self.raised = False
        self._app, self._id = app, id
        self._thread = threading.Thread(target=self._wait, name="demo-caller", daemon=True)
        self._thread.start()

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def _wait(self) -> None:
        try:
            value = AsyncResult(self._id, app=self._app).get(timeout=PATIENCE + DECISION_PATIENCE)
        except NoResult:
            self.heard = "waited in vain"
        except Exception as error:
            self.raised = True
            self.heard, self.details = type(error).__name__, str(error)
        else:
            self.heard = repr(value)


class Story:
    """Looks on until everything is settled, decides twice, and gathers what happened."""

    def __init__(self, stage: Stage, load: Load, screen: Screen, interruptions: Interruptions) -> None:
        self._stage, self.load, self._screen = stage, load, screen
        self._interruptions = interruptions
        self._quarantine = Quarantine(stage.app)
        self.watch = Watch(stage, load, self._quarantine)
        self._caller = Caller(stage.app, load.poison[TO_FAIL.name])

    def play(self) -> Findings:
        self._wait(self._is_settled, PATIENCE)
        before = self._gather()
        released = self._release(TO_RELEASE, before)
        failed = self._fail(TO_FAIL, before)
        # What was released is cleared a moment after its caller has the result.
        self._wait(lambda _: not self._candidates(), CLEARING)
        self._screen.settle(self.watch.look())
        return replace(before, released=released, failed=failed, candidates=self._candidates())

    def _wait(self, over: Callable[[Snapshot], bool], patience: float) -> bool:
        deadline = self.watch.seconds + patience
        while self.watch.seconds < deadline:
            snapshot = self.watch.look()
            self._screen.show(snapshot)
            if over(snapshot):
                return True
            if self._stage.workers.gave_up:
                return False
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
        tally = self._stage.tally
        return Findings(
            results={
                n: found.result if found.state == states.SUCCESS else None for n, found in results.items()
            },
            starts=tally.starts(),
            kills=tally.kills(self.load.poison),
            quarantined={record.id: record for record in self._quarantine.list()},
            candidates=self._candidates(),
            poison_ids=self.load.poison,
            released=None,
            failed=None,
        )

    # --- the two decisions ---------------------------------------------------------------------

    def _release(self, poison: Poison, before: Findings) -> Decision | None:
        record = before.kept(poison.name)
        if record is None:
            return None
        self._stage.tally.repair(poison.name)
        self._screen.note(f"{poison.name} was repaired and is released: it runs once more")
        (outcome,) = self._quarantine.release([record.mid], actor=ACTOR, note="the task was repaired")
        if not outcome.done:
            return Decision(poison.name, False, False, outcome.error)
        result = AsyncResult(record.id, app=self._stage.app)
        came = self._wait(lambda _: result.state == states.SUCCESS, DECISION_PATIENCE)
        if not came:
            return Decision(poison.name, True, False, "no result arrived")
        self.watch.mark_released(poison)
        self._screen.show(self.watch.look())
        return Decision(poison.name, True, True, repr(result.result))

    def _fail(self, poison: Poison, before: Findings) -> Decision | None:
        record = before.kept(poison.name)
        if record is None or not self._caller.waits:
            return None
        self._screen.note(f"{poison.name} is given up: somebody waits for its result and must hear of it")
        (outcome,) = self._quarantine.fail([record.mid], actor=ACTOR, note="nobody needs it")
        if not outcome.done:
            return Decision(poison.name, False, False, outcome.error)
        self._wait(lambda _: not self._caller.waits, DECISION_PATIENCE)
        return Decision(poison.name, True, self._caller.raised, self._caller.heard, self._caller.details)
