"""What other policies would have cost; which to take is chosen on the first days, judged on the rest (NEW-7).

Spark picks the few messages that any policy treats differently; :mod:`celery_poison.pipeline.replay` does the
rest. The queries are SQL that Spark and DuckDB read alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from celery_poison.pipeline.blame import ALWAYS, IS_ALIVE, Ask, few
from celery_poison.pipeline.replay import DEFAULTS, InForce, Policy, PolicyCost, Step, replay, timeline
from celery_poison.pipeline.tables.attempts import LONGEST_MS
from celery_poison.pipeline.window import Window
from celery_poison.policy import EVERY_TASK

#: Changes nothing: what every other policy is compared with.
AS_IT_WAS: Policy = {}
GRID: tuple[Policy, ...] = (
    *(
        {**crashes, **after}
        for crashes, after in product(
            ({}, *({"max_crashes": many} for many in (1, 2, 3, 5))),
            ({}, *({"block_fingerprint_after": many} for many in (1, 3))),
        )
    ),
    *({"max_failures": failures} for failures in (2, 10)),
)
#: How many deaths are as bad as one innocent in quarantine.
WEIGHT = 10.0

#: The attempts of every task id that ever was in trouble, and those like a guilty one.
_STEPS = f"""
with attempt as (select * from {{kin}} r where id is not null and {{window}} and {{recent}}
), troubled as (
  select distinct id as troubled_id from attempt r where not ({IS_ALIVE} and r.end <> 'rolled_back')
), alike as (
  select distinct fingerprint as alike from attempt r
  where r.end = 'crashed' and proof = 'proven' and fingerprint is not null
), concerned as (
  select attempt.*, case when {IS_ALIVE.replace("r.", "attempt.")} and attempt.end = 'finished' then 'alive'
    else attempt.end end as ending
  from attempt left join troubled on attempt.id = troubled_id left join alike on attempt.fingerprint = alike
  where troubled_id is not null or alike is not null
)
select id, coalesce(started_at, ended_at) as started, ended_at as ended, ending,
  coalesce(blame, '') as blame, coalesce(proof, '') as proof, coalesce(death, '') as death,
  incident is not null as in_incident, coalesce(cause, '') as cause,
  coalesce(fingerprint, '') as fingerprint,
  greatest(0, least(coalesce(runtime_ms, 0), {LONGEST_MS})) as runtime_ms, coalesce(task, '') as task
from concerned order by ended_at, seq
"""
_CHANGES = """
select n.at as changed, task, note from {noted} n
where event = 'policy_changed' and task is not null and note is not null order by n.at, seq
"""


class Replayed(NamedTuple):
    """The outcome of every policy of the grid; that of the one to take, and why; the one in force now."""

    outcomes: list[PolicyCost]
    best: PolicyCost
    reasons: list[str]
    now: InForce


def backtest(
    ask: Ask, window: Window = ALWAYS, settings: InForce = DEFAULTS, weight: float = WEIGHT
) -> Replayed:
    """Replay a history under every policy of :data:`GRID`, and say which to take.

    Args:
        ask: runs a query over ``{kin}`` and ``{noted}``.
        settings: what the code and the settings say, which no journal tells.
        weight: how many deaths are as bad as one innocent in quarantine.
    """
    steps, days, now = past(ask, window, settings)
    outcomes = replay(steps, GRID)
    return Replayed(outcomes, *recommend(outcomes, days, weight), now)


def past(
    ask: Ask, window: Window = ALWAYS, settings: InForce = DEFAULTS
) -> tuple[list[Step], list[date], InForce]:
    """Return the steps of a back-test: those that a policy can treat differently, by the time of their end.

    Returns:
        these steps; all days from the first to the last, UTC; the policy in force at the end, for every task
        without an override of its own.
    """
    changes, told = (
        [*zip(*ask(window.fill(query)).to_pydict().values(), strict=True)] for query in (_CHANGES, _STEPS)
    )
    in_force = timeline(changes, settings)
    steps = [Step._make((*row, in_force(row[2], task))) for *row, task in told]
    first, last = (steps[n].ended.date() for n in (0, -1)) if steps else (date.max, date.min)
    days = [first + timedelta(n) for n in range((last - first).days + 1)]
    return steps, days, in_force(datetime.max.replace(tzinfo=UTC), EVERY_TASK)


def recommend(
    outcomes: Sequence[PolicyCost], days: Sequence[date] = (), weight: float = WEIGHT
) -> tuple[PolicyCost, list[str]]:
    """Return the outcome of the policy to take, and why, in sentences.

    It is the one that costs least: deaths, and ``weight`` deaths for each innocent in quarantine. It is
    chosen by the first days. On the last ones, which chose nothing, it must have been better than what was in
    force, and that not by chance; else what was in force is recommended. Of equals the one that sends fewer
    messages to a person, then the one that changes least.

    Args:
        outcomes: that of :data:`AS_IT_WAS` among them.
        days: of the history. The last 30 % of them are held out; fewer than five cannot say how much one
            differs from another, so of a short history none are, which is said.
    """
    many = int(len(days) * 0.3)
    chose, held = (days[:-many], days[-many:]) if many >= 5 else (days, ())

    def cost(told: PolicyCost) -> tuple[float, int, int]:
        return float(_costs(told, chose, weight).sum()), told.waiting, len(told.policy)

    best = min(outcomes, key=cost)
    was = next(told for told in outcomes if told.policy == AS_IT_WAS)
    words = []
    if best is not was and not held:
        words = [f"only {len(days)} days of history: no days were held out to judge it by"]
    elif best is not was:
        gain, low, high = gained(_costs(was, held, weight) - _costs(best, held, weight))
        saves = f"saves {few(gain)} ({few(low)} to {few(high)}) deaths or their like"
        words = [f"on the {len(held)} days held out, {say(best.policy)} {saves}"]
        if low <= 0:
            best, words = was, [f"{words[0]}: that may be chance, so nothing is to be changed"]
    costs = "{0.deaths:,} deaths, {0.innocents:,} innocents in quarantine, {0.waiting:,} messages waiting"
    reasons = [f"{costs.format(best)}; an innocent weighs as much as {weight:g} deaths"]
    reasons += [f"as it is: {costs.format(was)}"] if was is not best else []
    return best, [*reasons, *words]


def gained(by_day: np.ndarray) -> tuple[float, float, float]:
    """Return the sum of what was gained each day, and its 95 % interval: days are drawn again and again.

    Whole days, since the deaths of one day often have one reason.
    """
    draws = np.random.default_rng(0).choice(by_day, (2000, len(by_day))).sum(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(by_day.sum()), float(low), float(high)


def _costs(told: PolicyCost, days: Sequence[date], weight: float) -> np.ndarray:
    if not days:
        return np.array([told.deaths + weight * told.innocents])
    return np.array([told.deaths_on[day] + weight * told.innocents_on[day] for day in days])


def say(policy: Policy) -> str:
    """Return the policy in words, as the settings would say it; only what it changes."""
    return " ".join(f"{name}={value}" for name, value in policy.items()) or "as it is"


def as_dict(replayed: Replayed) -> dict[str, Any]:
    """Return as JSON has them all outcomes, of their policies what these change, and the one to take."""
    names = ("policy", "deaths", "worker_deaths", "lost_ms", "waiting", "innocents")
    outcomes = [
        {name: getattr(told, name) for name in names}
        | {"blocked": told.caught.total(), "wrong_blocks": sorted(told.wrong_blocks)}
        | {"says": say(told.policy)}
        for told in replayed.outcomes
    ]
    policy = replayed.best.policy
    best = {"policy": policy, "says": say(policy), "reasons": replayed.reasons}
    return {"outcomes": outcomes, "recommended": best}
