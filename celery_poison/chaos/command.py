"""The command ``celery-poison chaos``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click

from celery_poison.chaos.faults import KINDS, possible
from celery_poison.chaos.faults.kind import EVERY_BROKER, NEED_A_DISK
from celery_poison.chaos.judge import HEALTHY
from celery_poison.chaos.plan import make_plan
from celery_poison.chaos.run import Outcome, run
from celery_poison.chaos.stage import SLOTS, Options, directory_of
from celery_poison.chaos.surroundings import Disk

#: Findings of one kind that are shown.
SHOWN = 5


@click.command("chaos")
@click.option("--pool", type=click.Choice(list(SLOTS)), default="prefork", show_default=True)
@click.option("--broker", type=click.Choice(EVERY_BROKER), default="redis", show_default=True)
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
    chosen = _chosen(names, pool, broker)
    options = Options(pool, broker, trial, not guard, disks=any(name in NEED_A_DISK for name in chosen))
    plan = make_plan(chosen, minutes * 60, seed, options.workers)
    with directory_of(keep) as directory:
        outcome = run(options, plan, minutes * 60, seed, directory, lambda text: click.echo(text, err=True))
        _tell(outcome, seed)
    sys.exit(1 if outcome.failures else 0)


def _chosen(names: str, pool: str, broker: str) -> list[str]:
    there_are = possible(pool, broker)
    if names != "all":
        chosen = [name.strip() for name in names.split(",")]
        for name in chosen:
            if name not in there_are:
                known = f"not with {pool} on {broker}" if name in KINDS else "no such fault"
                raise click.BadParameter(f"{name}: {known}; there are {', '.join(there_are)}")
        return chosen
    without = [name for name in NEED_A_DISK if name in there_are and not Disk.available()]
    if without:
        click.echo(f"left out, since only root can mount a small disk: {', '.join(without)}", err=True)
    return [name for name in there_are if name not in without]


def _tell(outcome: Outcome, seed: int) -> None:
    sent = outcome.facts.sent
    healthy = sum(one.kind == HEALTHY for one in sent.values())
    click.echo(f"seed {seed}: {len(sent)} messages, {healthy} of them healthy")
    click.echo(f"faults: {dict(Counter(blow.name for blow in outcome.facts.blows))}")
    told: Counter[tuple[str, str]] = Counter()
    for finding in outcome.findings:
        case, verdict = finding.case, finding.excuse or "FAILED"
        told[case.wrong.value, verdict] += 1
        if told[case.wrong.value, verdict] <= SHOWN:
            click.echo(f"  {case.wrong.value}: {case.id} {case.text}: {verdict}")
    click.echo(f"{dict(told) or 'all held'}")
