"""The command ``python -m tests.chaos``, and one run of it: plan, stage, faults, judge."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import click
import redis

from celery_poison.demo.programs import Interrupted, Interruptions
from tests.chaos import remains, report
from tests.chaos.excuses import GATE, IN_MINGLE, Wrong
from tests.chaos.faults import EVERY_BROKER, EVERY_LEDGER, KINDS, NEED_A_DISK, possible
from tests.chaos.judge import HEALTHY, Outcome, judge, judge_plain
from tests.chaos.plan import make_plan, play, shortest
from tests.chaos.runs import Blow, Facts, Fault, read_lines, runs_of
from tests.chaos.stage import SLOTS, WORKERS, Options, Stage, meanwhile

#: Seconds that the fleet gets to finish what it has: at most, and without anything changing. Plain Celery
#: looks only every hundred seconds for what a dead worker held.
PATIENCE, STANDSTILL, PLAIN_STANDSTILL = 600.0, 45.0, 130.0
#: What Celery says when a worker gives up, and the traceback behind it.
UNRECOVERABLE = re.compile(r"(Unrecoverable error: .*)((?:\n(?!\[).*)*)")

#: Where the ledger is, in words.
_WHERE = {"beside": "beside that", "cluster": "on a cluster"}

_EPILOG = """\b
Examples:
  python -m tests.chaos                              one minute of everything
  python -m tests.chaos --pool threads --minutes 20 --seed 7
  python -m tests.chaos --faults redis-kill,poison-segv
  python -m tests.chaos --seed 7 --bisect 12         and if it fails: which faults does it take?
  python -m tests.chaos --seed 7 --plain             the same to Celery without the plugin

Exit status: 0 nothing failed, 1 something did, 2 wrong usage, 3 no Redis or RabbitMQ, 128 + signal.
"""


@click.command("chaos", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--pool", type=click.Choice(list(SLOTS)), default="prefork", show_default=True)
@click.option("--broker", type=click.Choice(EVERY_BROKER), default="redis", show_default=True)
@click.option("--ledger", type=click.Choice(EVERY_LEDGER), default="beside", show_default=True,
              help="Beside the broker, or on a cluster.")  # fmt: skip
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
    pool: str, broker: str, ledger: str, trial: str, minutes: float, seed: int, names: str, guarded: bool,
    keep: Path | None, runs: int, table: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Break servers and workers of a private fleet, and see what is lost.

    Starts a broker and three supervised workers, keeps them busy, and does to them what a plan says
    that was made from a seed. When all is quiet again, the tasks' own log tells whether each message
    was done once. Needs nothing that runs already, and leaves nothing behind.
    """
    chosen = _chosen(names, pool, broker, ledger)
    disks = any(name in NEED_A_DISK for name in chosen)
    options = Options(pool, broker, trial, not guarded, disks, ledger)
    plan = make_plan(chosen, minutes * 60, seed, WORKERS)
    with Interruptions() as interruptions:

        def try_part(part: list[Fault]) -> Outcome:
            with _directory(keep) as directory:
                _say(f"{len(part)} faults, in {directory}")
                with Stage(options, directory, seed, interruptions.stopping) as stage:
                    return run(stage, part, minutes * 60, interruptions)

        try:
            outcome = try_part(plan)
            told = report.as_dict(outcome, options, seed, minutes)
            if outcome.failures and runs:
                found = shortest(plan, lambda part: bool(try_part(part).failures), runs)
                told["shortest"] = [f"{fault.at:g} s {fault.name} w{fault.worker}" for fault in found]
        except Interrupted as interrupted:
            _say("stopped; nothing is left behind")
            sys.exit(interrupted.exit_status)
        except FileNotFoundError as error:
            _say(f"Error: {error}")
            sys.exit(3)
    if table is not None:
        report.append_row(table, told)
    click.echo(json.dumps(told, indent=2) if as_json else "\n".join(report.lines(told)))
    sys.exit(1 if outcome.failures else 0)


def _chosen(names: str, pool: str, broker: str, ledger: str) -> list[str]:
    there_are = possible(pool, broker, ledger)
    if names != "all":
        chosen = [name.strip() for name in names.split(",")]
        for name in chosen:
            if name not in there_are:
                known = (
                    f"not with {pool} on {broker}, its ledger {_WHERE[ledger]}"
                    if name in KINDS
                    else "no such fault"
                )
                raise click.BadParameter(f"{name}: {known}; there are {', '.join(there_are)}")
        return chosen
    without = [name for name in NEED_A_DISK if name in there_are and os.geteuid()]
    if without:
        _say(f"left out, since only root can mount a small disk: {', '.join(without)}")
    return [name for name in there_are if name not in without]


def _say(text: str) -> None:
    click.echo(text, err=True)


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Yield a new directory below ``keep``, which stays, or one that disappears."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield Path(mkdtemp(prefix="run-", dir=keep.resolve()))
        return
    with TemporaryDirectory(prefix="celery-poison-chaos-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def run(stage: Stage, plan: list[Fault], seconds: float, interruptions: Interruptions) -> Outcome:
    """Play a plan to a fleet of its own, and judge.

    Args:
        seconds: how long faults may strike.

    Raises:
        Interrupted: somebody wants it to end.
    """
    stage.fleet.start().wait_ready(120)
    watch = remains.Watch(stage)
    with meanwhile(watch.look_on):
        with meanwhile(stage.load.feed):
            blows, broken = play(plan, stage, seconds, _say)
        began = time.monotonic()
        _await_quiet(stage, watch)
    interruptions.pause()
    quiet, plain = time.monotonic() - began, stage.options.plain
    facts = _facts(stage, watch, blows, broken)
    outcome = Outcome(plan, facts, (judge_plain if plain else judge)(facts), quiet)
    worst = sorted(outcome.failures, key=lambda case: case.wrong is not Wrong.LOST)
    ids = list(dict.fromkeys(case.id for case in worst if case.id))[:20]
    outcome.stories = {id: report.story(id, facts) for id in ids}
    (stage.directory / "run.json").write_text(json.dumps(asdict(outcome), default=sorted))
    return outcome


def _await_quiet(stage: Stage, watch: remains.Watch) -> None:
    """Wait until nothing is left to do, or patience ends."""
    began = changed = time.monotonic()
    standstill = PLAIN_STANDSTILL if stage.options.plain else STANDSTILL
    left = _open(stage, watch)
    while left and time.monotonic() < min(began + PATIENCE, changed + standstill):
        stage.wait(0.5)
        if stage.stopping.is_set():
            return
        before, left = left, _open(stage, watch)
        changed = changed if left == before else time.monotonic()
    _say(f"after {time.monotonic() - began:.0f} s {left or 'nothing'} is left to do")


def _open(stage: Stage, watch: remains.Watch) -> dict[str, int]:
    ended = {line.id for line in read_lines(stage.log, "end")}
    sure = {id for id, sent in stage.load.sent.items() if sent.sure and sent.kind == HEALTHY}
    missing = len(sure - ended - {*watch.convicted})
    with suppress(redis.RedisError, OSError):
        return remains.look(stage).open | ({"not done": missing} if missing else {})
    return {"server": 1}


def _facts(stage: Stage, watch: remains.Watch, blows: list[Blow], broken: list[str]) -> Facts:
    """Ask Redis what is left, before and after everybody leaves."""
    counts, known = remains.look(stage)
    stage.stop_fleet()
    after = remains.look(stage).counts
    left = counts | {f"{name}, when all have left": after[name] for name in after.keys() - counts}
    if not stage.options.plain:
        left |= remains.left_behind(stage)
    return Facts(
        sent=stage.load.sent,
        runs=runs_of(read_lines(stage.log)),
        blows=sorted([*blows, *stage.deaths, *_gates(watch.journal)], key=lambda blow: blow.began),
        broker=stage.options.broker,
        tried=stage.options.trial != "off",
        convicted=watch.convicted,
        left=left,
        known=known,
        complaints=[*_complaints(stage), *(("", text) for text in broken)],
        accused=watch.accused,
        journal=watch.journal,
    )


def _gates(journal: Iterable[tuple[float, dict[str, str]]]) -> list[Blow]:
    """Return when the fleet gate was closed."""
    gates: list[Blow] = []
    for at, entry in journal:
        if entry["event"] == "gate_closed":
            gates.append(Blow(GATE, at, note=entry["note"]))
        elif entry["event"] == "gate_lifted" and gates:
            gates[-1].ended = at
    return gates


def _complaints(stage: Stage) -> list[tuple[str, str]]:
    return [
        (life, f"{found} {IN_MINGLE}" if "consumer/mingle.py" in trace else found)
        for life, worker in stage.lives.items()
        for found, trace in UNRECOVERABLE.findall(worker.log_text())
    ]
