"""One history under one policy; each decision is ``celery_poison.decide``'s, as in the workers (NEW-7).

docs/pipeline-tables.md says what is assumed where history is silent.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from celery_poison import causes
from celery_poison.decide import Action, Facts, convict, judge
from celery_poison.model import NO_HISTORY, History, Limits
from celery_poison.policy import EVERY_TASK, OVERRIDABLE

#: What is changed of the policy that was in force, by the names of :class:`InForce`; empty: as it was.
Policy = Mapping[str, Any]
#: For each limit of size: day -> how many messages that are not among the steps are larger.
Oversized = Mapping[int, Mapping[int, int]]
#: A message that history only ever saw dying is not run more often than this.
_ENOUGH = 100
DAY_MS = 86_400_000


class Step(NamedTuple):
    """How one start ended. Times in milliseconds since 1970; ``end`` is alive, or as in ``attempts``."""

    id: str
    started: int
    ended: int
    end: str
    blame: str = ""
    proof: str = ""
    death: str = ""
    in_incident: bool = False
    cause: str = ""
    fingerprint: str = ""
    payload_bytes: int = 0
    runtime_ms: int = 0
    task: str = ""


class InForce(NamedTuple):
    """What decided about a message; the names are those of the settings, without their prefix."""

    max_crashes: int = 2
    max_failures: int = 5
    max_payload_bytes: int | None = None
    block_fingerprint_after: int | None = None
    trial: bool = True


#: What the settings are where nobody changed them.
DEFAULTS = InForce()


class Timeline:
    """Which policy was in force when, for which task: what the journal tells of its changes.

    Args:
        changes: ``policy_changed`` entries of the journal, by time: milliseconds since 1970, task, note.
        settings: what held before anybody changed it, and holds for what nobody did; no journal tells it.
    """

    def __init__(self, changes: Iterable[tuple[int, str, str]] = (), settings: InForce = DEFAULTS) -> None:
        self._settings = settings
        self._times: list[int] = []
        #: Overrides by task, after each change; the first before any.
        self._states: list[Mapping[str, Mapping[str, Any]]] = [{}]
        self._of = cache(self._in_force)
        before: Mapping[str, Any] = {}
        for at, task, note in changes:
            options = self._states[-1].get(task, {})
            if re.search(r": proposal \d+$", note):
                before = options
            told = before if note.startswith("as it was before") else _after(options, note)
            self._times.append(at)
            self._states.append({**self._states[-1], task: told})

    def at(self, ms: int, task: str) -> InForce:
        """Return what held for ``task`` at a moment: its own override goes before that of every task."""
        return self._of(bisect_right(self._times, ms), task)

    def last(self) -> InForce:
        """Return what holds now for every task without an override of its own."""
        return self._of(-1, EVERY_TASK)

    def _in_force(self, number: int, task: str) -> InForce:
        state = self._states[number]
        return self._settings._replace(**{**state.get(EVERY_TASK, {}), **state.get(task, {})})


def _after(options: Mapping[str, Any], note: str) -> Mapping[str, Any]:
    """Return a task's overrides after a change; what a newer release may have written is left out."""
    verb, _, rest = note.partition(": ")[0].partition(" ")
    if verb == "unset":
        gone = OVERRIDABLE if rest == "everything" else rest.split()
        return {name: value for name, value in options.items() if name not in gone}
    found = {
        name: None if value == "none" else int(value)
        for name, value in re.findall(r"(\w+)=(none|\d+)", rest)
        if name in OVERRIDABLE
    }
    return {**options, **found}


@dataclass(slots=True)
class Outcome:
    """What a policy would have cost.

    Attributes:
        deaths: processes and workers that died; ``worker_deaths`` of them whole workers.
        lost_ms: what those who died had run in vain.
        waiting: messages sent to quarantine, for a person to decide.
        blocked: of these, those that a blocked fingerprint kept from running at all.
        innocents: of these, those of which history knows that they would have ended alive.
        caught: of the blocked, how many by which fingerprint.
        wrong_blocks: fingerprints that were blocked and kept an innocent from running.
        by_day: deaths and innocents of each day, counted from 1970 in UTC.
    """

    policy: Policy
    deaths: int = 0
    worker_deaths: int = 0
    lost_ms: int = 0
    waiting: int = 0
    blocked: int = 0
    innocents: int = 0
    caught: Counter[str] = field(default_factory=Counter)
    wrong_blocks: set[str] = field(default_factory=set)
    by_day: dict[int, list[int]] = field(default_factory=dict)

    def died(self, day: int) -> None:
        self.deaths += 1
        self.by_day.setdefault(day, [0, 0])[0] += 1

    def wronged(self, day: int, many: int = 1) -> None:
        self.innocents += many
        self.by_day.setdefault(day, [0, 0])[1] += many


def replay(
    steps: Sequence[Step],
    policy: Policy,
    oversized: Oversized | None = None,
    timeline: Timeline | None = None,
) -> Outcome:
    """Replay ``steps``, by time, under ``policy``.

    Args:
        oversized: history saw all of these end alive.
        timeline: the policy that was in force; by default the defaults of the settings.
    """
    told = _Replay(steps, policy, timeline or Timeline())
    for step in steps:
        told.take(step)
    for day, larger in (oversized or {}).get(policy.get("max_payload_bytes") or 0, {}).items():
        told.outcome.waiting += larger
        told.outcome.wronged(day, larger)
    return told.outcome


class _Replay:
    """The ledger of a replay: who has which history, who is in quarantine, what is blocked."""

    def __init__(self, steps: Sequence[Step], policy: Policy, timeline: Timeline) -> None:
        self.outcome = Outcome(policy)
        self._timeline = timeline
        self._last = {step.id: step for step in steps}
        self._alive_at = {step.id: step.ended for step in steps if step.end == "alive"}
        self._members: dict[str, list[Step]] = {}
        for step in steps:
            if step.end == "crashed":
                self._members.setdefault(step.death, []).append(step)
        self._histories: dict[str, History] = {}
        self._gone: set[str] = set()
        self._convictions: Counter[str] = Counter()
        self._blocked_since: dict[str, int] = {}
        self._happened: dict[str, bool] = {}

        @cache
        def changed(was: InForce) -> tuple[InForce, Limits]:
            force = was._replace(**policy)
            return force, Limits(force.max_crashes, force.max_failures, force.max_payload_bytes, force.trial)

        self._changed = changed

    def take(self, step: Step) -> None:
        # That holds for a step which held then, but for what the policy changes.
        self._force, self._limits = self._changed(self._timeline.at(step.ended, step.task))
        self._day = step.ended // DAY_MS
        if step.id in self._gone or not self._admitted(step):
            return
        if step.end == "alive":
            self._histories.pop(step.id, None)
        elif step.end == "crashed":
            self._death(step)
        else:
            known = self._histories.get(step.id, NO_HISTORY)
            # A shutdown is nobody's fault; a worker that fell silent counts as a failure.
            counts = step.end == "rolled_back" or step.cause == causes.FROZEN
            self._judge(step, replace(known, failures=known.failures + counts))

    def _admitted(self, step: Step) -> bool:
        since = self._blocked_since.get(step.fingerprint) if step.fingerprint else None
        blocked = "blocked" if since is not None and since <= step.started else ""
        history = self._histories.get(step.id, NO_HISTORY)
        if history is NO_HISTORY and not blocked and self._force.max_payload_bytes is None:
            return True  # as nearly all are: nothing is known against it
        facts = Facts(history=history, payload_bytes=step.payload_bytes, blocked=blocked)
        verdict = judge(facts, self._limits)
        if verdict.action is not Action.QUARANTINE:
            return True
        if verdict.cause == causes.BLOCKED:
            self.outcome.blocked += 1
            self.outcome.caught[step.fingerprint] += 1
            if self._is_innocent(step):
                self.outcome.wrong_blocks.add(step.fingerprint)
        self._quarantine(step)
        return False

    def _death(self, step: Step) -> None:
        if not self._happens(step):
            # Whoever killed its worker is in quarantine by now: it would have run to its end.
            self._histories.pop(step.id, None)
        elif step.blame == "shared" and not self._force.trial:
            self._fall_together(step)
        else:
            self._strike(step)
            if step is self._last[step.id] and step.proof == "proven":
                # History ends with its conviction; a more patient policy would have seen the same again.
                for _ in range(_ENOUGH):
                    if step.id in self._gone:
                        break
                    self.outcome.died(self._day)
                    self._strike(step)

    def _happens(self, step: Step) -> bool:
        """Whether this death still comes about, counting it once for all who are in it."""
        if step.death not in self._happened:
            culprits = [each for each in self._members[step.death] if each.proof == "proven"]
            happens = not culprits or any(
                each.id not in self._gone and self._admitted(each) for each in culprits
            )
            self._happened[step.death] = happens
            if happens:
                self.outcome.died(self._day)
                self.outcome.worker_deaths += step.in_incident
        return self._happened[step.death]

    def _strike(self, step: Step) -> None:
        known, alone = self._histories.get(step.id, NO_HISTORY), step.blame == "exact"
        self.outcome.lost_ms += step.runtime_ms
        self._judge(step, self._struck(known, alone, step.cause))

    @staticmethod
    @cache  # a third of a back-test's time: a million strikes have few different histories
    def _struck(known: History, alone: bool, cause: str) -> History:
        return replace(
            known,
            crashes=known.crashes + 1,
            strikes=known.strikes + 1,
            proven=known.proven + alone,
            failures=known.failures + (cause == causes.TIME_LIMIT),
            candidate=True,
            shared_blame=not alone,
            cause=cause,
        )

    def _fall_together(self, step: Step) -> None:
        """Without trials, those who fell together run together again, until the guilty one is convicted.

        It is the worst case: they are put back to the front of their queue together. All of an incident is
        done at its first member's step; its other members find themselves judged already.
        """
        members = self._members[step.death]
        if step != members[0]:
            return
        culprits = [each for each in members if each.proof == "proven"]
        for round_ in range(_ENOUGH if culprits else 1):
            running = [each for each in members if each.id not in self._gone]
            if culprits and not any(each in running for each in culprits):
                return
            if round_:
                self.outcome.died(self._day)
                self.outcome.worker_deaths += 1
            for each in running:
                self._strike(each)

    def _judge(self, step: Step, history: History) -> None:
        self._histories[step.id] = history
        if convict(history, self._limits) is None:
            return
        self._quarantine(step)
        if step.fingerprint:
            self._convictions[step.fingerprint] += 1
            after = self._force.block_fingerprint_after
            if after is not None and self._convictions[step.fingerprint] >= after:
                self._blocked_since.setdefault(step.fingerprint, step.ended)

    def _quarantine(self, step: Step) -> None:
        self._gone.add(step.id)
        self.outcome.waiting += 1
        if self._is_innocent(step):
            self.outcome.wronged(self._day)

    def _is_innocent(self, step: Step) -> bool:
        return step.end == "alive" or step.proof == "cleared" or self._alive_at.get(step.id, 0) > step.ended
