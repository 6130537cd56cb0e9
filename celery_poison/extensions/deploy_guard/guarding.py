"""The guard in a worker: whose turn it is, and how first runs end here.

A worker that has once found the first runs of a task over never asks about that task again.
"""

from __future__ import annotations

import time
from collections.abc import Set
from contextlib import suppress
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.parts import Asked, Hold, Turn
from celery_poison.basics.text import literal
from celery_poison.causes import NO_EVIDENCE, place_in
from celery_poison.decide import End, EndedRun
from celery_poison.errors import ConfigurationError
from celery_poison.extensions.deploy_guard.first_runs import (
    FirstRunOutcome,
    FirstRuns,
    Over,
    begun,
    ended,
    turn_of,
)
from celery_poison.extensions.deploy_guard.settings import DeployGuardSettings
from celery_poison.extensions.deploy_guard.version_record import FirstRunsSeen, VersionRecord
from celery_poison.extensions.holds.pauses import Pause, Paused, Scope
from celery_poison.keep.arguments import fingerprint_of
from celery_poison.ledger.connection import clear_errors
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

logger = get_logger("celery_poison")

#: Seconds for which the next in line waits in memory, so that no time is lost between two first runs.
PATIENCE = 2.0
#: How tasks of the plugin's own begin.
OURS = "celery_poison."


class Guarding(Hold):
    """Holds back the first runs of this worker's version."""

    def __init__(self, site: Site) -> None:
        settings = site.settings
        self._site = site
        self._needed = settings.of(DeployGuardSettings).deploy_guard_runs
        self._record = VersionRecord(site.ledger, settings.code_version)
        self._paused = Paused(site.ledger, site.complain, settings.code_version)
        #: Tasks about which nothing is asked any more.
        self._over: set[str] = set()
        #: First runs of the tasks of this batch, until one of them begins.
        self._seen: dict[str, FirstRunsSeen] = {}
        #: Tasks of the runs that have their turn here, by token; and what those died of.
        self._tasks: dict[str, str] = {}
        self._deaths: dict[str, tuple[str, str]] = {}
        #: The next in line of each task, and since when.
        self._next: dict[str, tuple[str, float]] = {}

    def asks(self, task: str) -> bool:
        return task not in self._over

    # --- in the background thread --------------------------------------------------------------

    def expect(self, tasks: Set[str]) -> None:
        self._seen = {}
        with suppress(Exception):  # else `turn` looks itself, and fails for one message alone
            self._seen = self._record.look_many(tasks - self._over)

    def turn(self, asked: Asked) -> Turn:
        task = asked.task
        if task.startswith(OURS) or asked.room is None:
            return self._as_ever(asked)
        # One look serves all messages of a task, until one of them begins.
        if (seen := self._seen.get(task)) is None:
            seen = self._seen[task] = self._record.look(task)
        turn = turn_of(
            seen.runs,
            asked.token,
            now=seen.now,
            lives=seen.lives,
            is_suspect=asked.is_suspect,
            has_room=asked.room > 0,
        )
        if turn is Turn.ALONE:
            return self._begin(asked, seen)
        if turn is Turn.BEGIN and not self._is_paused(seen.runs, task):
            return self._as_ever(asked)
        return self._wait(asked) if turn is Turn.PARK else Turn.PARK

    def _as_ever(self, asked: Asked) -> Turn:
        if asked.room is None:
            said = "the deploy guard holds nothing back here: this worker can make no cell"
            self._site.complain(ConfigurationError(said))
        self._over.add(asked.task)
        self.version += 1
        self._next.pop(asked.task, None)
        return Turn.BEGIN

    def _begin(self, asked: Asked, seen: FirstRunsSeen) -> Turn:
        self._seen.pop(asked.task, None)
        runs = begun(seen.runs, asked.mid, asked.token, seen.now)
        if seen.runs.token != asked.token and not self._record.change(asked.task, seen, runs):
            return Turn.SOON
        self._next.pop(asked.task, None)
        self._tasks[asked.token] = asked.task
        return Turn.ALONE

    def _is_paused(self, runs: FirstRuns, task: str) -> bool:
        if runs.over is not Over.DEATHS:
            return False
        self._paused.refresh()
        return self._paused(Scope.TASK, task)

    def _wait(self, asked: Asked) -> Turn:
        """Let one message of each task wait here for a moment, the others in the ledger."""
        now = time.monotonic()
        token, since = self._next.get(asked.task, ("", 0.0))
        if token != asked.token:
            waiting = sum(now - since < PATIENCE for _, since in self._next.values())
            if asked.is_suspect or now - since < PATIENCE or waiting >= asked.slots:
                return Turn.PARK
            self._next[asked.task] = asked.token, now
        elif now - since >= PATIENCE:
            return Turn.PARK
        return Turn.SOON

    # --- how it ended --------------------------------------------------------------------------

    def died(self, token: str, run: EndedRun, error: BaseException) -> None:
        """Hear of a death, before :meth:`ended`."""
        if token in self._tasks and not run.asked and not run.leaving:
            place = place_in(getattr(error, "evidence", NO_EVIDENCE).source)
            note = causes.short(run.cause) + (f", {place}" if place else "")
            self._deaths[token] = run.cause, note

    def ended(self, queue: str, request: Any, end: End) -> None:
        task = self._tasks.pop(request.poison_token, None) if self._tasks else None
        if task is not None:
            death = self._deaths.pop(request.poison_token, None)
            message = request.message if death else None
            self._site.background.do(partial(self._tell, task, request.poison_token, end, death, message))

    def _fingerprint_of(self, task: str, message: Any) -> str:
        """Return the fingerprint of a message that died; empty where it is not known."""
        with suppress(Exception):
            return fingerprint_of(message, task, self._site.recorder.secret)
        return ""

    def _is_known_poison(self, fingerprint: str) -> bool:
        """Whether such a message was convicted before: its death says nothing about this version."""
        ledger = self._site.ledger
        with clear_errors("asking for convictions"):
            return bool(fingerprint and ledger.client.exists(ledger.keys.convictions(fingerprint)))

    def _tell(
        self, task: str, token: str, end: End, death: tuple[str, str] | None, message: Any = None
    ) -> None:
        fingerprint = self._fingerprint_of(task, message) if message is not None else ""
        if death and self._is_known_poison(fingerprint):
            death = None
        seen = self._record.look(task)
        is_alive = bool(end.outcome) and end not in (End.WAITS, End.NOT_REACHED)
        outcome = (
            FirstRunOutcome.DIED if death else FirstRunOutcome.ALIVE if is_alive else FirstRunOutcome.UNKNOWN
        )
        runs = ended(seen.runs, token, outcome, self._needed, fingerprint)
        if runs is seen.runs:
            return
        cause, note = death or ("", "")
        if not self._record.change(task, seen, runs, cause=cause, note=note):
            raise Retry(0.0)
        if runs.over is Over.DEATHS:
            pause = Pause(scope=Scope.VERSION, name=task, version=self._record.version, note=note)
            sentence = f"celery_poison: %s kills {literal(task)} ({literal(note)}): paused"
            logger.error(sentence, pause.version, extra={"task": task, "cause": cause})
