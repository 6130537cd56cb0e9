"""What other policies would have cost; which to take is chosen on the first days, judged on the rest (NEW-7).

Spark picks the few messages that any policy treats differently; :mod:`celery_poison.pipeline.replay` does the
rest. The queries are SQL that Spark and DuckDB read alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, timedelta
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from celery_poison.pipeline.blame import ALWAYS, IS_ALIVE, SIZE, Ask, filled
from celery_poison.pipeline.replay import (
    DAY_MS,
    DEFAULTS,
    InForce,
    Outcome,
    Oversized,
    Policy,
    Step,
    Timeline,
    replay,
)
from celery_poison.pipeline.window import Window

#: Of a history with more steps than this the newest are replayed: each policy goes through all of them.
MOST = 100_000
#: Changes nothing: what every other policy is compared with.
AS_IT_WAS: Policy = {}
#: The limits of size that are tried: powers of ten, by which ``tallies`` counts.
SIZES = (1_000_000, 10_000_000, 100_000_000)
GRID: tuple[Policy, ...] = (
    *(
        {**crashes, **after, **trial}
        for crashes, after, trial in product(
            ({}, *({"max_crashes": many} for many in (1, 2, 3, 5))),
            ({}, *({"block_fingerprint_after": many} for many in (1, 3))),
            ({}, {"trial": False}),
        )
    ),
    *({"max_failures": failures} for failures in (2, 10)),
    *({"max_payload_bytes": size} for size in SIZES),
)
#: How many deaths are as bad as one innocent in quarantine.
WEIGHT = 10.0
#: The share of the days, at the end of the history, that chooses nothing and judges what was chosen.
HELD_OUT = 0.3
#: Fewer days cannot say how much one differs from another.
LEAST_DAYS = 5

#: The attempts of every task id that ever was in trouble, and those like a guilty one.
_CONCERNED = f"""
with told as (select * from {{kin}} r where id is not null and {{window}} and {{recent}}
), troubled as (
  select distinct id as troubled_id from told r where not ({IS_ALIVE} and r.end <> 'rolled_back')
), alike as (
  select distinct fingerprint as alike from told r
  where r.end = 'crashed' and proof = 'proven' and fingerprint is not null
), concerned as (
  select told.*, case when {IS_ALIVE.replace("r.", "told.")} and told.end = 'finished' then 'alive'
    else told.end end as ending
  from told left join troubled on told.id = troubled_id left join alike on told.fingerprint = alike
  where troubled_id is not null or alike is not null
)"""
_STEPS = f"""{_CONCERNED}
select id, coalesce(started_at, ended_at) as started, ended_at as ended, ending,
  coalesce(blame, '') as blame, coalesce(proof, '') as proof, coalesce(death, '') as death,
  incident is not null as in_incident, coalesce(cause, '') as cause,
  coalesce(fingerprint, '') as fingerprint, coalesce(payload_bytes, 0) as payload_bytes,
  coalesce(runtime_ms, 0) as runtime_ms, coalesce(task, '') as task
from concerned order by ended_at desc, seq desc limit {{most}}
"""
#: By day and decade of size, how many messages came to their end alive that are not among the steps.
_OVERSIZED = f"""{_CONCERNED}, ended as (
  select date as day, size, n from {{tallies}} r
  where {IS_ALIVE} and r.end = 'finished' and coalesce(outcome, '') <> 'retry' and {{window}} and {{recent}}
  union all select date, {SIZE}, -1 from concerned where ending = 'alive' and coalesce(outcome, '') <> 'retry'
)
select day, size, cast(sum(n) as bigint) as n from ended where size > 3 group by day, size
"""
_CHANGES = """
select n.at as changed, task, note from {noted} n
where event = 'policy_changed' and task is not null and note is not null order by n.at, seq
"""


class Past(NamedTuple):
    """What a back-test replays.

    Attributes:
        steps: of all messages that a policy can treat differently, by the time of their end.
        days: counted from 1970 in UTC.
        says: what of the history is not in it, in a sentence; empty for nothing.
    """

    steps: list[Step]
    days: range
    timeline: Timeline
    oversized: Oversized
    says: str = ""


class Recommendation(NamedTuple):
    """The policy to take, what it would have cost, and why, in sentences."""

    policy: Policy
    outcome: Outcome
    reasons: tuple[str, ...]


class Replayed(NamedTuple):
    """The outcome of every policy of the grid, the one to take, and the one in force at the end."""

    outcomes: list[Outcome]
    best: Recommendation
    now: InForce


def backtest(
    ask: Ask, window: Window = ALWAYS, settings: InForce = DEFAULTS, weight: float = WEIGHT
) -> Replayed:
    """Replay a history under every policy of :data:`GRID`, and say which to take.

    Args:
        ask: runs a query over ``{kin}``, ``{tallies}`` and ``{noted}``.
        settings: what the code and the settings say, which no journal tells.
        weight: how many deaths are as bad as one innocent in quarantine.
    """
    seen = past(ask, window, settings)
    outcomes = [replay(seen.steps, policy, seen.oversized, seen.timeline) for policy in GRID]
    best = recommend(outcomes, seen.days, weight)
    if seen.says:
        best = best._replace(reasons=(*best.reasons, seen.says))
    return Replayed(outcomes, best, seen.timeline.last())


def past(ask: Ask, window: Window = ALWAYS, settings: InForce = DEFAULTS, most: int = MOST) -> Past:
    """Return what of a history depends on the policy; of one that is too long the newest ``most`` runs."""
    names = {"recent": window.recent, "window": window.within}
    table = ask(filled(_STEPS, {**names, "most": str(most + 1)}))
    columns = table.to_pydict() | {name: _millis(table[name]) for name in ("started", "ended")}
    newest = [Step(*row) for row in zip(*columns.values(), strict=True)]
    steps = newest[most - 1 :: -1]
    days = range(steps[0].ended // DAY_MS, steps[-1].ended // DAY_MS + 1) if steps else range(0)
    says = ""
    if len(newest) > most:
        since = date(1970, 1, 1) + timedelta(days.start)
        says = f"only the runs since {since}: more than {most:,} are too many to replay"
    oversized: dict[int, Counter[int]] = {limit: Counter() for limit in SIZES}
    for row in ask(filled(_OVERSIZED, names)).to_pylist():
        day = (row["day"] - date(1970, 1, 1)).days
        for limit in SIZES:
            if row["n"] and 10 ** (row["size"] + 2) >= limit and (day >= days.start or not says):
                oversized[limit][day] += row["n"]
    changes = ask(_CHANGES)
    told = zip(_millis(changes["changed"]), *(changes[n].to_pylist() for n in ("task", "note")), strict=True)
    return Past(steps, days, Timeline(told, settings), oversized, says)


def _millis(column: Any) -> list[int]:
    told: list[int] = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    return told


def recommend(outcomes: Sequence[Outcome], days: range = range(0), weight: float = WEIGHT) -> Recommendation:
    """Return the policy that costs least: deaths, and ``weight`` deaths for each innocent in quarantine.

    It is chosen by the first days. On the last ones, which chose nothing, it must have been better than what
    was in force, and that not by chance; else what was in force is recommended. Of equals the one that sends
    fewer messages to a person, then the one that changes least.

    Args:
        outcomes: that of :data:`AS_IT_WAS` among them.
        days: of the history, counted from 1970 in UTC. Too few of them: nothing is held out, which is said.
    """
    many = int(len(days) * HELD_OUT)
    held = days[-many:] if many >= LEAST_DAYS else range(0)
    chose = range(days.start, held.start) if held else days

    def cost(told: Outcome) -> tuple[float, int, int]:
        return float(_costs(told, chose, weight).sum()), told.waiting, len(told.policy)

    best = min(outcomes, key=cost)
    was = next(told for told in outcomes if told.policy == AS_IT_WAS)
    if best is was:
        return Recommendation(was.policy, was, tuple(_reasons(was, was, outcomes, weight)))
    if not held:
        words = f"only {len(days)} days of history: no days were held out to judge it by"
    else:
        gain, low, high = gained(_costs(was, held, weight) - _costs(best, held, weight))
        words = (
            f"on the {len(held)} days held out, {say(best.policy)} saves {gain:g} ({low:g} to {high:g})"
            " deaths or their like"
        )
        if low <= 0:
            best, words = was, f"{words}: that may be chance, so nothing is to be changed"
    return Recommendation(best.policy, best, (*_reasons(best, was, outcomes, weight), words))


def gained(by_day: np.ndarray) -> tuple[float, float, float]:
    """Return the sum of what was gained each day, and its 95 % interval: days are drawn again and again.

    Whole days, since the deaths of one day often have one reason.
    """
    draws = np.random.default_rng(0).choice(by_day, (2000, len(by_day))).sum(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(by_day.sum()), float(low), float(high)


def _costs(told: Outcome, days: range, weight: float) -> np.ndarray:
    """Return what each day cost; without days, one sum of all."""
    if not days:
        return np.array([told.deaths + weight * told.innocents])
    each = (told.by_day.get(day, (0, 0)) for day in days)
    return np.array([deaths + weight * innocents for deaths, innocents in each])


def say(policy: Policy) -> str:
    """Return the policy in words, as the settings would say it; only what it changes."""
    differs = {**policy, "trial": "cell" if policy["trial"] else "off"} if "trial" in policy else policy
    return " ".join(f"{name}={value}" for name, value in differs.items()) or "as it is"


def _reasons(best: Outcome, was: Outcome, outcomes: Sequence[Outcome], weight: float) -> list[str]:
    reasons = [
        f"{best.deaths} deaths, {best.innocents} innocents in quarantine, {best.waiting} messages waiting; an"
        f" innocent weighs as much as {weight:g} deaths"
    ]
    if was is not best:
        numbers = f"{was.deaths} deaths, {was.innocents} innocents, {was.waiting} waiting"
        reasons.append(f"as it is: {numbers}")
    for told in outcomes:
        differing = {name for name, _ in {*told.policy.items()} ^ {*best.policy.items()}}
        if told is was or len(differing) != 1:
            continue
        saved, price = best.deaths - told.deaths, told.innocents - best.innocents
        if saved > 0 and price > 0:
            reasons.append(f"{say(told.policy)} saves {saved} deaths and costs {price} innocents")
        elif price < 0:
            reasons.append(f"{say(told.policy)} spares {-price} innocents and costs {-saved} deaths")
    return reasons


def as_dict(told: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON has it; of its policy what that changes."""
    as_it_is = asdict(told)
    # By fingerprint and by day, for each of many policies: long, and told with each proposal.
    del as_it_is["caught"], as_it_is["by_day"]
    return {**as_it_is, "wrong_blocks": sorted(told.wrong_blocks), "says": say(told.policy)}


def as_recommended(told: Recommendation) -> dict[str, Any]:
    """Return a recommendation as JSON has it, without the figures of its outcome."""
    return {"policy": told.policy, "says": say(told.policy), "reasons": [*told.reasons]}
