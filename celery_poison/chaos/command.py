"""The command ``celery-poison chaos``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from celery_poison.chaos import faults
from celery_poison.chaos.judge import HEALTHY
from celery_poison.chaos.plan import make_plan
from celery_poison.chaos.run import Outcome, run
from celery_poison.chaos.stage import SLOTS, Options, directory_of


@click.command("chaos")
@click.option("--pool", type=click.Choice(list(SLOTS)), default="prefork", show_default=True)
@click.option("--broker", type=click.Choice(["redis", "rabbitmq"]), default="redis", show_default=True)
@click.option("--trial", type=click.Choice(["cell", "queue", "off"]), default="cell", show_default=True)
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--faults", "names", default="all", show_default=True)
@click.option("--guard/--plain", "guard", default=True)
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path))
def chaos(
    pool: str, broker: str, trial: str, minutes: float, seed: int, names: str, guard: bool, keep: Path | None
) -> None:
    """Chaos."""
    options = Options(pool, broker, trial, not guard)
    chosen = faults.possible(pool, broker) if names == "all" else names.split(",")
    plan = make_plan(chosen, minutes * 60, seed, options.workers)
    with directory_of(keep) as directory:
        outcome = run(options, plan, minutes * 60, seed, directory, lambda text: click.echo(text, err=True))
        _tell(outcome, seed)
    sys.exit(1 if outcome.failures else 0)


def _tell(outcome: Outcome, seed: int) -> None:
    sent = outcome.facts.sent
    click.echo(f"seed {seed}, {len(sent)} sent, {sum(s.kind == HEALTHY for s in sent.values())} healthy")
    click.echo(f"blows: {dict(Counter(blow.name for blow in outcome.facts.blows))}")
    for finding in outcome.findings:
        case, verdict = finding.case, finding.excuse or "FAILED"
        click.echo(f"{case.wrong.value}: {case.id} {case.text}: {verdict}")
