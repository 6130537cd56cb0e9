"""Many policies, and which of them to take: chosen on the first part of the history, judged on the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from celery_poison.pipeline.backtest.in_force import Timeline
from celery_poison.pipeline.backtest.replay import KEPT, Kept, Outcome, Oversized, Policy, Step, replay
from celery_poison.pipeline.tables.kin import LARGE

#: Changes nothing: what every other policy is compared with.
AS_IT_WAS = Policy()
#: The limits of size that are tried.
SIZES = (LARGE, 10_000_000, 100_000_000)
_CRASHES: tuple[int | Kept, ...] = (KEPT, 1, 2, 3, 5)
_AFTER: tuple[int | Kept, ...] = (KEPT, 1, 3)
_TRIAL: tuple[bool | Kept, ...] = (KEPT, False)
DEFAULT_GRID: tuple[Policy, ...] = (
    *(
        Policy(max_crashes=crashes, block_fingerprint_after=after, trial=trial)
        for crashes, after, trial in product(_CRASHES, _AFTER, _TRIAL)
    ),
    *(Policy(max_failures=failures) for failures in (2, 10)),
    *(Policy(max_payload_bytes=size) for size in SIZES),
)
#: How many deaths are as bad as one innocent in quarantine.
WEIGHT = 10.0
#: The share of the days, at the end of the history, that chooses nothing and judges what was chosen.
HELD_OUT = 0.3
#: Fewer days cannot say how much one differs from another.
LEAST_DAYS = 5
_DRAWS = 2000


@dataclass(frozen=True)
class Recommendation:
    """The policy to take, and why, in sentences."""

    policy: Policy
    outcome: Outcome
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Gain:
    """What a policy saves against another, summed over days; the bounds are those of a 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:g} ({self.low:g} to {self.high:g})"


def run(
    steps: Sequence[Step],
    grid: Sequence[Policy] = DEFAULT_GRID,
    oversized: Oversized | None = None,
    progress: Callable[[int], None] = lambda done: None,
    timeline: Timeline | None = None,
) -> list[Outcome]:
    """Replay ``steps`` under each policy of ``grid``.

    Args:
        progress: is called with the number of policies that are done.
        timeline: the policy that was in force; by default the defaults of the settings.
    """
    outcomes = []
    for number, policy in enumerate(grid, 1):
        outcomes.append(replay(steps, policy, oversized, timeline))
        progress(number)
    return outcomes


def recommend(
    outcomes: Sequence[Outcome], days: range = range(0), weight: float = WEIGHT
) -> Recommendation | None:
    """Return the policy that costs least: deaths, and ``weight`` deaths for each innocent in quarantine.

    It is chosen by the first days. On the last ones, which chose nothing, it must have been better than what
    was in force, and that not by chance; else what was in force is recommended. Of equals the one that sends
    fewer messages to a person, then the one that changes least. None for an empty grid.

    Args:
        days: of the history, counted from 1970 in UTC. Too few of them: nothing is held out, which is said.
    """
    if not outcomes:
        return None
    held = held_out(days)
    chose = range(days.start, held.start) if held else days

    def cost(told: Outcome) -> tuple[float, int, int]:
        return float(_costs(told, chose, weight).sum()), told.waiting, len(told.policy.changes())

    best = min(outcomes, key=cost)
    was = next((told for told in outcomes if told.policy == AS_IT_WAS), None)
    if was is None or best is was:
        return Recommendation(best.policy, best, tuple(_reasons(best, was, outcomes, weight)))
    if not held:
        few = f"only {len(days)} days of history: no days were held out to judge it by"
        return Recommendation(best.policy, best, (*_reasons(best, was, outcomes, weight), few))
    gain = gained(_costs(was, held, weight) - _costs(best, held, weight))
    words = f"on the {len(held)} days held out, {say(best.policy)} saves {gain} deaths or their like"
    if gain.low <= 0:
        why = (f"{words}: that may be chance, so nothing is to be changed",)
        return Recommendation(was.policy, was, (*_reasons(was, was, outcomes, weight), *why))
    return Recommendation(best.policy, best, (*_reasons(best, was, outcomes, weight), words))


def held_out(days: range) -> range:
    """Return the days that choose nothing; empty where there are too few."""
    many = int(len(days) * HELD_OUT)
    return range(days.stop - many, days.stop) if many >= LEAST_DAYS else range(0)


def gained(by_day: np.ndarray) -> Gain:
    """Return the sum of what was gained each day, with its 95 % interval: days are drawn again and again.

    Whole days, since the deaths of one day often have one reason.
    """
    draws = np.random.default_rng(0).choice(by_day, (_DRAWS, len(by_day))).sum(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return Gain(float(by_day.sum()), float(low), float(high))


def _costs(told: Outcome, days: range, weight: float) -> np.ndarray:
    """Return what each day cost; without days, one sum of all."""
    if not days:
        return np.array([told.deaths + weight * told.innocents])
    each = (told.by_day.get(day, (0, 0)) for day in days)
    return np.array([deaths + weight * innocents for deaths, innocents in each])


def say(policy: Policy) -> str:
    """Return the policy in words, as the settings would say it; only what it changes."""
    differs = policy.changes()
    if "trial" in differs:
        differs["trial"] = "cell" if policy.trial else "off"
    return " ".join(f"{name}={value}" for name, value in differs.items()) or "as it is"


def _reasons(best: Outcome, was: Outcome | None, outcomes: Sequence[Outcome], weight: float) -> list[str]:
    reasons = [
        f"{best.deaths} deaths, {best.innocents} innocents in quarantine, {best.waiting} messages waiting; an"
        f" innocent weighs as much as {weight:g} deaths"
    ]
    if was is not None and was is not best:
        reasons.append(f"as it is: {_numbers(was)}")
    for told in outcomes:
        if told is was or told is best or not _is_near(told.policy, best.policy):
            continue
        if told.deaths < best.deaths and told.innocents > best.innocents:
            saved, price = best.deaths - told.deaths, told.innocents - best.innocents
            reasons.append(f"{say(told.policy)} saves {saved} deaths and costs {price} innocents")
        elif told.innocents < best.innocents:
            saved, price = best.innocents - told.innocents, told.deaths - best.deaths
            reasons.append(f"{say(told.policy)} spares {saved} innocents and costs {price} deaths")
    return reasons


def _is_near(one: Policy, other: Policy) -> bool:
    """Whether two policies differ in one thing only."""
    differing = {*one.changes().items()} ^ {*other.changes().items()}
    return len({name for name, _ in differing}) == 1


def _numbers(told: Outcome) -> str:
    return f"{told.deaths} deaths, {told.innocents} innocents, {told.waiting} waiting"


def as_dict(told: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON has it; of its policy what that changes."""
    as_it_is = asdict(told)
    # By fingerprint and by day, for each of many policies: long, and told with each proposal.
    del as_it_is["caught"], as_it_is["by_day"]
    wrong = sorted(told.wrong_blocks)
    return {**as_it_is, "policy": told.policy.changes(), "wrong_blocks": wrong, "says": say(told.policy)}


def as_recommended(told: Recommendation) -> dict[str, Any]:
    """Return a recommendation as JSON has it, without the figures of its outcome."""
    return {"policy": told.policy.changes(), "says": say(told.policy), "reasons": [*told.reasons]}
