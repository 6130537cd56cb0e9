"""The command ``celery-poison chaos``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from celery_poison.chaos import report
from celery_poison.chaos.faults import KINDS, possible
from celery_poison.chaos.judge import Outcome
from celery_poison.chaos.plan import Fault, make_plan, shortest
from celery_poison.chaos.run import Program
from celery_poison.chaos.stage import SLOTS, Options, directory_of
from celery_poison.chaos.surroundings import Disk
from celery_poison.chaos.torment import EVERY_BROKER, NEED_A_DISK
from celery_poison.testing.basics import Interrupted, Interruptions

EXIT_BROKEN, EXIT_NO_SERVER = 1, 3

_EPILOG = """\b
Examples:
  celery-poison chaos                               one minute of everything
  celery-poison chaos --pool threads --minutes 20 --seed 7
  celery-poison chaos --faults redis-kill,poison-segv
  celery-poison chaos --seed 7 --bisect 12          and if it fails: which faults does it take?
  celery-poison chaos --seed 7 --plain              the same to Celery without the plugin

Exit status: 0 nothing failed, 1 something did, 2 wrong usage, 3 no Redis or RabbitMQ, 128 + signal.
"""


@click.command("chaos", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--pool", type=click.Choice(list(SLOTS)), default="prefork", show_default=True)
@click.option("--broker", type=click.Choice(EVERY_BROKER), default="redis", show_default=True)
@click.option("--trial", type=click.Choice(["cell", "queue", "off"]), default="cell", show_default=True,
              help="poison_trial of the workers.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(0.1, 1440), default=1.0, show_default=True,
              help="How long faults strike.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the load and the faults.")
@click.option("--faults", "names", default="all", show_default=True, help="Names with commas between them.")
@click.option("--guard/--plain", "guarded", default=True, help="With the plugin, or Celery alone.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path),
              help="Keep logs, plan and journal of each run in a directory below this one.")  # fmt: skip
@click.option("--bisect", "runs", type=click.IntRange(0), default=0, show_default=True,
              help="After a failure, so many more runs for a shorter list of faults that fails.")  # fmt: skip
@click.option("--report", "table", type=click.Path(dir_okay=False, path_type=Path),
              help="Append a row of Markdown to this file.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; progress goes to stderr.")
def chaos(
    pool: str, broker: str, trial: str, minutes: float, seed: int, names: str, guarded: bool,
    keep: Path | None, runs: int, table: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Break servers and workers of a private fleet, and see what is lost.

    Starts a broker and three supervised workers, keeps them busy, and does to them what a plan says
    that was made from a seed. When all is quiet again, the tasks' own log tells whether each message
    was done once. Needs nothing that runs already, and leaves nothing behind.
    """
    chosen = _chosen(names, pool, broker)
    options = Options(pool, broker, trial, not guarded, disks=any(name in NEED_A_DISK for name in chosen))
    plan = make_plan(chosen, minutes * 60, seed, options.workers)
    with Interruptions() as interruptions:
        program = Program(options, minutes * 60, seed, _say, interruptions)
        try:
            outcome = _play(program, plan, keep)
            told = report.as_dict(outcome, options, seed, minutes)
            if outcome.failures and runs:
                found = shortest(plan, lambda part: bool(_play(program, part, keep).failures), runs)
                told["shortest"] = [f"{fault.at:g} s {fault.name} w{fault.worker}" for fault in found]
        except Interrupted as interrupted:
            click.echo("stopped; nothing is left behind", err=True)
            sys.exit(interrupted.exit_status)
        except FileNotFoundError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(EXIT_NO_SERVER)
    if table is not None:
        report.append(table, report.row(outcome, options, seed, minutes))
    click.echo(json.dumps(told, indent=2) if as_json else "\n".join(_text(told, outcome)))
    sys.exit(EXIT_BROKEN if outcome.failures else 0)


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
        _say(f"left out, since only root can mount a small disk: {', '.join(without)}")
    return [name for name in there_are if name not in without]


def _play(program: Program, plan: list[Fault], keep: Path | None) -> Outcome:
    with directory_of(keep) as directory:
        _say(f"{len(plan)} faults, in {directory}")
        return program.run(plan, directory)


def _text(told: dict[str, object], outcome: Outcome) -> Iterator[str]:
    fleet = f"{told['pool']} on {told['broker']}{', plain' if told['plain'] else ''}"
    sent = f"{told['messages']} messages, {told['poisons']} of them poison, {len(outcome.plan)} faults"
    yield f"seed {told['seed']}, {fleet}: {sent}; {'all held' if told['ok'] else 'FAILED'}"
    yield from report.lines(outcome)
    if "shortest" in told:
        yield from ("", "The shortest list of faults that was found to fail:", *told["shortest"])  # type: ignore[misc]


def _say(text: str) -> None:
    click.echo(text, err=True)
