"""One history under one policy; each decision is ``celery_poison.decide``'s, as in the workers (NEW-7).

docs/pipeline-tables.md says what is assumed where history is silent.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cache
from typing import Any, NamedTuple

from celery_poison import causes
from celery_poison.decide import Action, Facts, convict, judge
from celery_poison.model import NO_HISTORY, History, Limits
from celery_poison.policy import EVERY_TASK

#: What is changed of the policy that was in force, by the names of :class:`InForce`; empty: as it was.
Policy = Mapping[str, Any]
#: A message that history only ever saw dying is not run more often than this.
_ENOUGH = 100


class InForce(NamedTuple):
    """The policy that decided about a message; the names are those of the settings, without their prefix.

    How large a message may be is not among it: no larger one ever ran.
    """

    max_crashes: int = 2
    max_failures: int = 5
    block_fingerprint_after: int | None = None
    trial: bool = True


#: What the settings are where nobody changed them.
DEFAULTS = InForce()


class Step(NamedTuple):
    """How one start ended, and the policy then; ``end`` is alive, or as in ``attempts``."""

    id: str
    started: datetime
    ended: datetime
    end: str
    blame: str = ""
    proof: str = ""
    death: str = ""
    in_incident: bool = False
    cause: str = ""
    fingerprint: str = ""
    runtime_ms: int = 0
    in_force: InForce = DEFAULTS


def timeline(
    changes: Iterable[tuple[datetime, str, str]] = (), settings: InForce = DEFAULTS
) -> Callable[[datetime, str], InForce]:
    """Return a function of a moment and a task that returns the policy in force.

    Args:
        changes: ``policy_changed`` entries of the journal, by time: time, task, note.
        settings: what held before anybody changed it, and holds for what nobody did; no journal tells it.
    """
    times: list[datetime] = []
    #: Overrides by task, after each change; the first before any.
    states: list[dict[str, Policy]] = [{}]
    before: Policy = {}
    for at, task, note in changes:
        options = states[-1].get(task, {})
        if re.search(r": proposal \d+$", note):
            before = options
        now = before if note.startswith("as it was before") else _after(options, note)
        times.append(at)
        states.append({**states[-1], task: now})

    @cache
    def of(number: int, task: str) -> InForce:
        # A task's own override goes before that of every task.
        return settings._replace(**{**states[number].get(EVERY_TASK, {}), **states[number].get(task, {})})

    return lambda when, task: of(bisect_right(times, when), task)


def _after(options: Policy, note: str) -> Policy:
    """Return a task's overrides after a change; what a newer release may have written is left out."""
    verb, _, rest = note.partition(": ")[0].partition(" ")
    if verb == "unset":
        gone = InForce._fields if rest == "everything" else rest.split()
        return {name: value for name, value in options.items() if name not in gone}
    found = re.findall(rf"\b({'|'.join(InForce._fields)})=(none|\d+)", rest)
    return {**options, **{name: None if value == "none" else int(value) for name, value in found}}


@dataclass(slots=True)
class PolicyCost:
    """The cost that a policy would have had.

    Attributes:
        deaths_on: day -> processes and workers that died on it.
        worker_deaths: of these, whole workers.
        lost_ms: what those who died had run in vain.
        waiting: messages sent to quarantine, for a person to decide.
        innocents_on: of these, day -> those of which history knows that they would have ended alive.
        caught: of these, fingerprint -> those that it kept from running at all, being blocked.
        wrong_blocks: fingerprints that were blocked and kept an innocent from running.
    """

    policy: Policy
    deaths_on: Counter[date] = field(default_factory=Counter)
    worker_deaths: int = 0
    lost_ms: int = 0
    waiting: int = 0
    innocents_on: Counter[date] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    wrong_blocks: set[str] = field(default_factory=set)

    @property
    def deaths(self) -> int:
        return self.deaths_on.total()

    @property
    def innocents(self) -> int:
        return self.innocents_on.total()


def replay(steps: Sequence[Step], policies: Iterable[Policy]) -> list[PolicyCost]:
    """Replay ``steps``, by time, under each of ``policies``."""
    history, outcomes = _Replay(steps), []
    in_force = {step.in_force for step in steps}
    found: dict[tuple[InForce, ...], PolicyCost] = {}
    for policy in policies:
        # Where nobody changed anything, max_crashes=2 is what was in force.
        changed = tuple(was._replace(**policy) for was in in_force)
        told = found[changed] = found.get(changed) or history.under(policy)
        outcomes.append(replace(told, policy=policy))
    return outcomes


@cache
def _limits(force: InForce) -> Limits:
    return Limits(force.max_crashes, force.max_failures, None, force.trial)


@cache  # a million ends of runs have few different histories
def _judged(known: History, end: str, blame: str, cause: str, limits: Limits) -> tuple[History, bool]:
    if end == "crashed":
        alone = blame == "exact"
        history = replace(
            known,
            crashes=known.crashes + 1,
            strikes=known.strikes + 1,
            proven=known.proven + alone,
            failures=known.failures + (cause in causes.FAILS),
            candidate=True,
            shared_blame=not alone,
            cause=cause,
        )
    else:
        # A shutdown is nobody's fault; a worker that fell silent counts as a failure.
        counts = end == "rolled_back" or cause in causes.FAILS
        history = replace(known, failures=known.failures + counts)
    return history, convict(history, limits) is not None


class _Replay:
    """The ledger of a replay: who has which history, who is in quarantine, what is blocked."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._last = {step.id: step for step in steps}
        self._alive_at = {step.id: step.ended for step in steps if step.end == "alive"}
        self._members: dict[str, list[Step]] = defaultdict(list)
        for step in steps:
            if step.end == "crashed":
                self._members[step.death].append(step)

    def under(self, policy: Policy) -> PolicyCost:
        self.outcome = PolicyCost(policy)
        #: By message, with the limits by which it was judged.
        self._histories: dict[str, tuple[History, Limits]] = {}
        self._gone: set[str] = set()
        self._convictions: Counter[str] = Counter()
        self._blocked_since: dict[str, datetime] = {}
        self._happened: dict[str, bool] = {}
        was = None
        for step in self._steps:
            self._day = step.ended.date()
            if step.in_force != was:
                # What was in force holds, but for what the policy changes.
                was = step.in_force
                self._force = was._replace(**policy)
                self._limits = _limits(self._force)
            if step.id in self._gone or not self._admitted(step):
                continue
            if step.end == "alive":
                self._histories.pop(step.id, None)
            elif step.end == "crashed":
                self._death(step)
            else:
                self._judge(step)
        return self.outcome

    def _admitted(self, step: Step) -> bool:
        since = self._blocked_since.get(step.fingerprint)
        blocked = "blocked" if since and since <= step.started else ""
        history, judged = self._histories.get(step.id, (NO_HISTORY, self._limits))
        if judged is self._limits and not blocked:
            return True  # as nearly all are: nothing is known against it that did not convict it before
        verdict = judge(Facts(history=history, blocked=blocked), self._limits)
        if verdict.action is not Action.QUARANTINE:
            return True
        if verdict.cause == causes.BLOCKED:
            self.outcome.caught[step.fingerprint] += 1
            if self._is_innocent(step):
                self.outcome.wrong_blocks.add(step.fingerprint)
        self._quarantine(step)
        return False

    def _death(self, step: Step) -> None:
        if not self._happens(step):
            # Whoever killed its worker is in quarantine by now: it would have run to its end.
            self._histories.pop(step.id, None)
        else:
            self._strike(step)
            # History ends with its conviction; a more patient policy would have seen the same again.
            again = _ENOUGH if step is self._last[step.id] and step.proof == "proven" else 0
            while again and step.id not in self._gone:
                self.outcome.deaths_on[self._day] += 1
                self._strike(step)
                again -= 1

    def _happens(self, step: Step) -> bool:
        """Whether this death still comes about, counting it once for all who are in it."""
        if step.death not in self._happened:
            culprits = [each for each in self._members[step.death] if each.proof == "proven"]
            happens = not culprits or any(
                each is step or (each.id not in self._gone and self._admitted(each)) for each in culprits
            )
            self._happened[step.death] = happens
            self.outcome.deaths_on[self._day] += happens
            self.outcome.worker_deaths += happens and step.in_incident
        return self._happened[step.death]

    def _strike(self, step: Step) -> None:
        self.outcome.lost_ms += step.runtime_ms
        self._judge(step)

    def _judge(self, step: Step) -> None:
        known, _ = self._histories.get(step.id, (NO_HISTORY, None))
        history, convicted = _judged(known, step.end, step.blame, step.cause, self._limits)
        self._histories[step.id] = history, self._limits
        if not convicted:
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
        self.outcome.innocents_on[self._day] += self._is_innocent(step)

    def _is_innocent(self, step: Step) -> bool:
        alive_at = self._alive_at.get(step.id, step.ended)
        return step.end == "alive" or step.proof == "cleared" or alive_at > step.ended
