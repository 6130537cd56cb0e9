"""Many policies, and which of them to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product

from celery_poison.pipeline.backtest.replay import Outcome, Policy, Step, replay
from celery_poison.pipeline.tables.kin import LARGE

NOW = Policy()
#: The limits of size that are tried; ``None`` is none.
SIZES = (None, LARGE, 10_000_000, 100_000_000)
DEFAULT_GRID: tuple[Policy, ...] = (
    *(
        Policy(max_crashes=crashes, block_fingerprint_after=after, trial=trial)
        for crashes, after, trial in product((1, 2, 3, 5), (None, 1, 3), (True, False))
    ),
    *(Policy(max_failures=failures) for failures in (2, 10)),
    *(Policy(max_payload_bytes=size) for size in SIZES[1:]),
)
#: How many deaths are as bad as one innocent in quarantine.
WEIGHT = 10.0


@dataclass(frozen=True)
class Recommendation:
    """The policy to take, and why, in sentences."""

    policy: Policy
    outcome: Outcome
    reasons: tuple[str, ...]


def run(
    steps: Sequence[Step],
    grid: Sequence[Policy] = DEFAULT_GRID,
    oversized: Mapping[int, int] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Outcome]:
    """Replay ``steps`` under each policy of ``grid``.

    Args:
        progress: is called with the number of policies that are done.
    """
    outcomes = []
    for number, policy in enumerate(grid, 1):
        outcomes.append(replay(steps, policy, oversized))
        progress(number)
    return outcomes


def recommend(
    outcomes: Sequence[Outcome], now: Policy = NOW, weight: float = WEIGHT
) -> Recommendation | None:
    """Return the policy that costs least: deaths, and ``weight`` deaths for each innocent in quarantine.

    Of equals the one that sends fewer messages to a person, then the one that changes least of ``now``. None
    for an empty grid.
    """
    if not outcomes:
        return None

    def cost(told: Outcome) -> tuple[float, int, int]:
        return told.deaths + weight * told.innocents, told.waiting, len(changes(now, told.policy))

    best = min(outcomes, key=cost)
    return Recommendation(best.policy, best, tuple(_reasons(best, outcomes, now, weight)))


def changes(now: Policy, then: Policy) -> dict[str, object]:
    """Return what ``then`` sets otherwise than ``now``."""
    names = [each.name for each in fields(Policy)]
    return {name: getattr(then, name) for name in names if getattr(then, name) != getattr(now, name)}


def say(policy: Policy, now: Policy = NOW) -> str:
    """Return the policy in words, as the settings would say it; only what differs from ``now``."""
    differs = changes(now, policy)
    if "trial" in differs:
        differs["trial"] = "cell" if policy.trial else "off"
    return " ".join(f"{name}={value}" for name, value in differs.items()) or "as it is"


def _reasons(best: Outcome, outcomes: Sequence[Outcome], now: Policy, weight: float) -> list[str]:
    reasons = [
        f"{best.deaths} deaths, {best.innocents} innocents in quarantine, {best.waiting} messages waiting; an"
        f" innocent weighs as much as {weight:g} deaths"
    ]
    current = next((told for told in outcomes if told.policy == now), None)
    if current is not None and current is not best:
        reasons.append(f"as it is: {_numbers(current)}")
    for told in outcomes:
        if len(changes(best.policy, told.policy)) != 1 or told is current:
            continue
        if told.deaths < best.deaths and told.innocents > best.innocents:
            saved, price = best.deaths - told.deaths, told.innocents - best.innocents
            reasons.append(
                f"{say(told.policy, best.policy)} saves {saved} deaths and costs {price} innocents"
            )
        elif told.innocents < best.innocents:
            saved, price = best.innocents - told.innocents, told.deaths - best.deaths
            reasons.append(
                f"{say(told.policy, best.policy)} spares {saved} innocents and costs {price} deaths"
            )
    return reasons


def _numbers(told: Outcome) -> str:
    return f"{told.deaths} deaths, {told.innocents} innocents, {told.waiting} waiting"
