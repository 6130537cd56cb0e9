"""``pipeline backtest``: what other policies would have cost, and which to take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from celery_poison.pipeline import window
from celery_poison.pipeline.backtest import DEFAULT_GRID, InForce, Outcome, Recommendation, past, recommend
from celery_poison.pipeline.backtest import run as replay_all
from celery_poison.pipeline.backtest.grid import SIZES, WEIGHT, as_dict, as_recommended, say
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake

#: The outcome of every policy, which to take, and what holds today.
Replayed = tuple[list[Outcome], Recommendation | None, InForce]
OPTIONS = (
    click.Option(
        ["--weight"],
        type=click.FloatRange(0),
        default=WEIGHT,
        show_default=True,
        help="How many deaths are as bad as one innocent in quarantine.",
    ),
    *window.OPTIONS,
)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Sequence[Outcome]:
    """Replay the history under a grid of policies and print all outcomes, the recommended one last."""
    derived = Derived(session, lake)
    outcomes, best, _ = replayed(derived, options)
    if options.get("as_json"):
        told = [as_dict(each) for each in outcomes]
        click.echo(json.dumps({"outcomes": told, "recommended": best and as_recommended(best)}, indent=2))
        return outcomes
    click.echo("deaths  workers  lost_s  waiting  innocents  policy")
    for each in sorted(outcomes, key=lambda each: (each.innocents, each.deaths)):
        numbers = f"{each.deaths:6}  {each.worker_deaths:7}  {each.lost_ms // 1000:6}"
        click.echo(f"{numbers}  {each.waiting:7}  {each.innocents:9}  {say(each.policy)}")
    if best is not None:
        click.echo(f"recommended: {say(best.policy)}")
        click.echo("\n".join(f"  {reason}" for reason in best.reasons))
    return outcomes


def replayed(derived: Derived, options: Mapping[str, Any]) -> Replayed:
    """Return the outcome of every policy of the grid, the one to take, and the one in force at the end."""
    days = derived.window(options.get("since"), options.get("until"))
    settings = InForce()._replace(**options.get("settings") or {})
    seen = past(derived.ask, SIZES, days, settings)
    outcomes = replay_all(seen.steps, DEFAULT_GRID, seen.oversized, timeline=seen.timeline)
    best = recommend(outcomes, seen.days, options.get("weight", WEIGHT))
    if best is not None and seen.says:
        best = replace(best, reasons=(*best.reasons, seen.says))
    return outcomes, best, seen.timeline.last()
