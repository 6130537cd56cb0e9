"""One history under one policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from celery_poison import causes
from celery_poison.decide import Action, Facts, convict, judge
from celery_poison.model import NO_HISTORY, History, Limits
from celery_poison.pipeline.backtest.in_force import DEFAULTS, InForce, Timeline

#: A message that history only ever saw dying is not run more often than this.
_ENOUGH = 100
_DAY_MS = 86_400_000


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


class Kept(Enum):
    """That a policy leaves something as it was."""

    AS_IT_WAS = "as it was"


KEPT = Kept.AS_IT_WAS


@dataclass(frozen=True, slots=True)
class Policy:
    """One point of the grid: what it changes of the policy that was in force; names as of the settings."""

    max_crashes: int | Kept = KEPT
    max_failures: int | Kept = KEPT
    max_payload_bytes: int | Kept | None = KEPT
    block_fingerprint_after: int | Kept | None = KEPT
    trial: bool | Kept = KEPT

    def changes(self) -> dict[str, Any]:
        names = InForce._fields
        return {name: value for name in names if (value := getattr(self, name)) is not KEPT}


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


#: For each limit of size: day -> how many messages that are not among the steps are larger.
Oversized = Mapping[int, Mapping[int, int]]


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
    for number, step in enumerate(steps):
        told.take(step, last=told.last[step.id] == number)
    outcome, limit = told.outcome, policy.max_payload_bytes
    if isinstance(limit, int) and oversized:
        for day, larger in oversized[limit].items():
            outcome.waiting += larger
            outcome.wronged(day, larger)
    return outcome


class _Replay:
    """The ledger of a replay: who has which history, who is in quarantine, what is blocked."""

    def __init__(self, steps: Sequence[Step], policy: Policy, timeline: Timeline) -> None:
        self._changes, self._timeline = policy.changes(), timeline
        self._known: dict[InForce, tuple[InForce, Limits]] = {}
        self.force, self.limits, self._day = DEFAULTS, DEFAULTS.limits, 0
        self.outcome = Outcome(policy)
        self.last = {step.id: number for number, step in enumerate(steps)}
        self._alive_at = {step.id: step.ended for step in steps if step.end == "alive"}
        self._members = _members(steps)
        self._histories: dict[str, History] = {}
        self._gone: set[str] = set()
        self._convictions: dict[str, int] = {}
        self._blocked_since: dict[str, int] = {}
        self._happened: dict[str, bool] = {}

    def _enforce(self, step: Step) -> None:
        """Let that hold for a step which held then, but for what the policy changes."""
        was = self._timeline.at(step.ended, step.task)
        if was not in self._known:
            force = was._replace(**self._changes)
            self._known[was] = force, force.limits
        self.force, self.limits = self._known[was]
        self._day = step.ended // _DAY_MS

    def take(self, step: Step, *, last: bool) -> None:
        self._enforce(step)
        if step.id in self._gone or not self._admitted(step):
            return
        if step.end == "alive":
            self._histories.pop(step.id, None)
        elif step.end == "crashed":
            self._death(step, last)
        else:
            known = self._history(step)
            # A shutdown is nobody's fault; a worker that fell silent counts as a failure.
            counts = step.end == "rolled_back" or step.cause == causes.FROZEN
            self._judge(step, replace(known, failures=known.failures + counts))

    def _admitted(self, step: Step) -> bool:
        since = self._blocked_since.get(step.fingerprint) if step.fingerprint else None
        blocked = "blocked" if since is not None and since <= step.started else ""
        history = self._history(step)
        if history is NO_HISTORY and not blocked and self.force.max_payload_bytes is None:
            return True  # as nearly all are: nothing is known against it
        facts = Facts(history=history, payload_bytes=step.payload_bytes, blocked=blocked)
        verdict = judge(facts, self.limits)
        if verdict.action is not Action.QUARANTINE:
            return True
        if verdict.cause == causes.BLOCKED:
            self.outcome.blocked += 1
            self.outcome.caught[step.fingerprint] += 1
            if self._is_innocent(step):
                self.outcome.wrong_blocks.add(step.fingerprint)
        self._quarantine(step)
        return False

    def _death(self, step: Step, last: bool) -> None:
        if not self._happens(step):
            # Whoever killed its worker is in quarantine by now: it would have run to its end.
            self._histories.pop(step.id, None)
            return
        if step.blame == "shared" and not self.force.trial:
            self._fall_together(step)
            return
        self._strike(step)
        if last and step.proof == "proven":
            # History ends with its conviction; a more patient policy would have seen the same again.
            for _ in range(_ENOUGH):
                if step.id in self._gone:
                    break
                self.outcome.died(self._day)
                self._strike(step)

    def _happens(self, step: Step) -> bool:
        """Whether this death still comes about, counting it once for all who are in it."""
        known = self._happened.get(step.death)
        if known is None:
            culprits = [each for each in self._members.get(step.death, ()) if each.proof == "proven"]
            known = not culprits or any(self._still_runs(each) for each in culprits)
            self._happened[step.death] = known
            if known:
                self.outcome.died(self._day)
            self.outcome.worker_deaths += known and step.in_incident
        return known

    def _still_runs(self, culprit: Step) -> bool:
        return culprit.id not in self._gone and self._admitted(culprit)

    def _strike(self, step: Step) -> None:
        known = self._history(step)
        alone = step.blame == "exact"
        self.outcome.lost_ms += step.runtime_ms
        self._judge(
            step,
            replace(
                known,
                crashes=known.crashes + 1,
                strikes=known.strikes + 1,
                proven=known.proven + alone,
                failures=known.failures + (step.cause == causes.TIME_LIMIT),
                candidate=True,
                shared_blame=not alone,
                cause=step.cause,
            ),
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
        if convict(history, self.limits) is None:
            return
        self._quarantine(step)
        after = self.force.block_fingerprint_after
        if step.fingerprint:
            count = self._convictions[step.fingerprint] = self._convictions.get(step.fingerprint, 0) + 1
            if after is not None and count >= after:
                self._blocked_since.setdefault(step.fingerprint, step.ended)

    def _quarantine(self, step: Step) -> None:
        self._gone.add(step.id)
        self.outcome.waiting += 1
        if self._is_innocent(step):
            self.outcome.wronged(self._day)

    def _is_innocent(self, step: Step) -> bool:
        return step.end == "alive" or step.proof == "cleared" or self._alive_at.get(step.id, 0) > step.ended

    def _history(self, step: Step) -> History:
        return self._histories.get(step.id, NO_HISTORY)


def _members(steps: Iterable[Step]) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in steps:
        if step.end == "crashed":
            found.setdefault(step.death, []).append(step)
    return found
