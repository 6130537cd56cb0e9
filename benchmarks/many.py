"""A worker with all its slots busy is killed: how long until all of it is done, beside plain Celery.

A second worker is idle, and the dead one is started again after a second. See README.md beside this file
for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from many_app import POISON_AFTER
from many_fleet import Fleet, Memory, Setup

from celery_poison.settings import Settings
from celery_poison.testing import Worker, wait_until
from celery_poison.testing.servers import WaitTimeout

SETUPS = (Setup(False, "rabbitmq"), Setup(True, "redis"), Setup(True, "rabbitmq"))
PLAIN = SETUPS[0].name
#: Seconds until the dead worker is started again.
RESTART = 1.0
Figures = dict[str, Any]


class Row(NamedTuple):
    """One row of the table, and its targets: times in seconds, memory in megabytes.

    Attributes:
        seconds: of each task.
        ratio: to plain Celery in the same run, time until all is done.
        p50, last: from the death to the next start.
        added: memory that it may take while it lasts.
        poison: one of the tasks is what kills the worker.
    """

    pool: str
    slots: int
    seconds: float
    ratio: float
    added: float | None = None
    p50: float | None = None
    last: float | None = None
    poison: bool = False


ROWS: dict[str, Row] = {
    "prefork": Row("prefork", 10, 3.0, 1.1, p50=1.6, last=2.2),
    "threads": Row("threads", 50, 5.0, 1.2, added=600.0),
    "gevent": Row("gevent", 200, 5.0, 1.6, added=1600.0),
}
ROWS |= {f"{name}-poison": row._replace(poison=True) for name, row in ROWS.items()}
#: One trial: ms of processor time beyond the task's, and from the arrival of a suspect to its start.
TRIAL, CPU_MS, BEGIN_MS = "trial", 20.0, 40.0
TRIALS = 20


def play(row: Row, setup: Setup, patience: float) -> Figures:
    """Kill a worker whose slots are all busy, and see how its messages fare.

    Plain Celery would run a poison for ever: it is killed from outside in its place.
    """
    row = row if setup.guarded else row._replace(poison=False)
    with Fleet(setup) as fleet, ExitStack() as workers:

        def start(name: str) -> Worker:
            return workers.enter_context(fleet.worker(name, row.pool, row.slots))

        victim = start("w1").wait_ready(120)
        names = [f"m{number}" for number in range(row.slots - row.poison)]
        for name in names:
            fleet.send("waits", name, row.seconds)
        if row.poison:
            fleet.send("kills", "poison", POISON_AFTER)
        everybody = {*names, *(["poison"] if row.poison else [])}
        wait_until(lambda: fleet.names("start") == everybody, 120, what="all slots are busy")
        start("w2").wait_ready(120)
        # Monitors listen for so long before they believe in any death.
        time.sleep(Settings().activation_interval + 1.0)
        with Memory(fleet) as memory:
            fleet.strike()
            if row.poison:
                wait_until(lambda: fleet.names("kill"), 30, interval=0.01, what="the poison kills")
                at = fleet.marks("kill")[0].at
            else:
                at = time.time()
                victim.kill_group()
            victim.wait()
            time.sleep(max(0.0, at + RESTART - time.time()))
            start("w1")
            ended = _ends(fleet, row, set(names), patience)
        return {"finished": ended, "added_mb": round(memory.added, 1), **_told(fleet, names, at)}


def _ends(fleet: Fleet, row: Row, names: set[str], patience: float) -> bool:
    """Wait until all are done, and a poison is convicted."""

    def over() -> bool:
        return fleet.names("end") >= names and (not row.poison or "poison" in fleet.convicted())

    try:
        wait_until(over, patience, interval=0.1)
    except WaitTimeout:
        return False
    return True


def _told(fleet: Fleet, names: Sequence[str], at: float) -> Figures:
    marks = [mark for mark in fleet.marks() if mark.at > at]
    first: dict[str, float] = {}
    for mark in marks:
        if mark.event == "start" and mark.name in names:
            first.setdefault(mark.name, mark.at - at)
    ends = [mark.at - at for mark in marks if mark.event == "end"]
    runs = [mark.name for mark in fleet.marks("start")]
    return {
        "all_done": round(max(ends), 2) if len(ends) >= len(names) else None,
        "next_start_p50": round(statistics.median(first.values()), 2) if first else None,
        "next_start_last": round(max(first.values()), 2) if len(first) == len(names) else None,
        "most_runs": max(runs.count(name) for name in names),
        "poison_deaths": len(fleet.marks("kill")),
        "innocents_convicted": len(fleet.convicted() - {"poison"}),
    }


def one_trial(setup: Setup, patience: float) -> Figures:
    """What a trial costs beyond its task: the same tasks as suspects and as ordinary messages, one by one."""
    with Fleet(setup) as fleet, fleet.worker("w1", "prefork", 2) as worker:
        worker.wait_ready(120)
        time.sleep(2.0)
        found: dict[str, tuple[float, list[float]]] = {}
        for kind in ("warm", "plain", "suspect"):
            before = fleet.cpu()
            for number in range(TRIALS):
                name = f"{kind}{number}"
                (fleet.suspect if kind != "plain" else fleet.send)("burns", name, 0.02)
                wait_until(lambda: name in fleet.names("end"), patience, interval=0.02)  # noqa: B023
            time.sleep(2.0)
            marks = fleet.marks()
            came = {mark.name: mark.at for mark in marks if mark.event == "received"}
            waits = [m.at - came[m.name] for m in marks if m.event == "start" and m.name.startswith(kind)]
            found[kind] = fleet.cpu() - before, waits
        cpu, waits = found["suspect"][0] - found["plain"][0], found["suspect"][1]
        return {
            "cpu_ms": round(1000 * cpu / TRIALS, 1),
            "begin_ms_p50": round(1000 * statistics.median(waits), 1),
            "begin_ms_most": round(1000 * max(waits), 1),
        }


# --- what is printed ----------------------------------------------------------------------------------


def judged(name: str, found: dict[str, Figures]) -> dict[str, bool]:
    """Whether each target is kept, by set-up and target."""
    said: dict[str, bool] = {}
    for setup, one in found.items():
        if setup == PLAIN:
            continue
        if name == TRIAL:
            said[f"{setup}: cpu"] = one["cpu_ms"] <= CPU_MS
            said[f"{setup}: begin"] = one["begin_ms_p50"] <= BEGIN_MS
            continue
        row = ROWS[name]
        said[f"{setup}: all done"] = bool(one["finished"])
        if one.get("ratio") is not None:
            said[f"{setup}: ratio"] = one["ratio"] <= row.ratio
        for target, key in (
            (row.p50, "next_start_p50"),
            (row.last, "next_start_last"),
            (row.added, "added_mb"),
        ):
            if target is not None:
                said[f"{setup}: {key}"] = one[key] is not None and one[key] <= target
        said[f"{setup}: no innocent"] = not one["innocents_convicted"]
        if row.poison:
            said[f"{setup}: poison"] = one["poison_deaths"] == 2
    return said


def median(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure of some rounds; where one is missing, none."""

    def middle(values: Sequence[Any]) -> Any:
        return None if None in values else statistics.median_low(values)

    return {key: middle([one[key] for one in rounds]) for key in rounds[0]}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Play every wanted row, all set-ups in turn in each round."""
    told: dict[str, Any] = {}
    for name in args.rows:
        rounds: dict[str, list[Figures]] = {}
        for number in range(args.rounds):
            for setup in SETUPS:
                row = ROWS.get(name)
                if setup.guarded or (row is not None and not args.no_plain):
                    found = play(row, setup, args.patience) if row else one_trial(setup, args.patience)
                    rounds.setdefault(setup.name, []).append(found)
                    _say(args, f"  {name}, {setup.name}, round {number + 1}: {json.dumps(found)}")
        found_all = {column: median(each) for column, each in rounds.items()}
        plain = found_all.get(PLAIN, {}).get("all_done")
        for column, one in found_all.items():
            if plain and name != TRIAL and column != PLAIN:
                one["ratio"] = round(one["all_done"] / plain, 2) if one["all_done"] else None
        told[name] = {"figures": found_all, "targets": judged(name, found_all), "rounds": rounds}
    return told


def show(told: dict[str, Any]) -> None:
    for name, one in told.items():
        print(f"{name}: {_target(name)}")
        for setup, figures in one["figures"].items():
            print(f"  {setup:20} " + ", ".join(f"{key} {value}" for key, value in figures.items()))
        missed = [target for target, kept in one["targets"].items() if not kept]
        print(f"  missed: {'; '.join(missed) or 'nothing'}")


def _target(name: str) -> str:
    if name == TRIAL:
        return f"{TRIALS} trials; targets: {CPU_MS:g} ms of processor time more, begin after {BEGIN_MS:g} ms"
    row = ROWS[name]
    goals = [f"ratio {row.ratio:g}"]
    goals += [f"next start p50 {row.p50:g}, last {row.last:g} s"] if row.p50 else []
    goals += [f"{row.added:g} MB more"] if row.added else []
    goals += ["poison convicted by its second death"] if row.poison else []
    return f"{row.pool} -c {row.slots}, {row.seconds:g} s each; targets: {', '.join(goals)}"


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    wanted = [*ROWS, TRIAL]
    parser.add_argument(
        "--rows", nargs="+", choices=wanted, default=wanted, metavar="ROW", help=", ".join(wanted)
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each row; the median counts (3)")
    parser.add_argument(
        "--patience", type=float, default=180.0, metavar="S", help="longest wait for the end of a round"
    )
    parser.add_argument("--no-plain", action="store_true", help="without plain Celery, and so without ratios")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser.parse_args(argv)


def main() -> int:
    args = parse()
    # A cancelled job gets SIGTERM: as an interrupt it stops the fleet first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        told = run(args)
    except KeyboardInterrupt:
        return 130
    if args.json:
        args.json.write_text(json.dumps(told, indent=1))
    show(told)
    return 0 if all(kept for one in told.values() for kept in one["targets"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
