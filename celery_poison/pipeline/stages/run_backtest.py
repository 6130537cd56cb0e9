"""``pipeline backtest``: what other policies would have cost, and which to take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from celery_poison.pipeline.backtest import (
    DEFAULT_GRID,
    Outcome,
    Recommendation,
    oversized,
    recommend,
    steps,
)
from celery_poison.pipeline.backtest import (
    run as replay_all,
)
from celery_poison.pipeline.backtest.grid import SIZES, WEIGHT, say
from celery_poison.pipeline.backtest.telling import as_dict, as_recommended
from celery_poison.pipeline.derived import Derived
from celery_poison.pipeline.lake import Lake

#: The outcome of every policy, and which to take.
Replayed = tuple[list[Outcome], Recommendation | None]
OPTIONS = (
    click.Option(
        ["--weight"],
        type=click.FloatRange(0),
        default=WEIGHT,
        show_default=True,
        help="How many deaths are as bad as one innocent in quarantine.",
    ),
)


def run(session: Any, lake: Lake, options: Mapping[str, Any]) -> Sequence[Outcome]:
    """Replay the history under a grid of policies and print all outcomes, the recommended one last."""
    outcomes, best = replayed(Derived(session, lake), options["weight"])
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


def replayed(derived: Derived, weight: float = WEIGHT) -> Replayed:
    """Return the outcome of every policy of the grid, and the one to take."""
    kin = derived["kin"]
    concerned = steps(kin)
    larger = oversized(kin, concerned, [size for size in SIZES if size])
    outcomes = replay_all(concerned, DEFAULT_GRID, larger)
    return outcomes, recommend(outcomes, weight=weight)
