"""celery_poison beside Celery alone, Celery's own cap, RabbitMQ's delivery limit, and Relier.

What came of it is in docs/comparison.md; README.md beside this file tells what is done. Relier has to be
installed in the same environment for its column: ``pip install relier==0.1.7``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cputime
import rounds
from comparison_apps import QUEUE, SETUPS
from comparison_fleet import Fleet
from failover import spread

from celery_poison.testing import WaitTimeout, Worker, wait_until

HEALTHY = [f"h{number}" for number in range(200)]
DELIVERY_LIMIT, PREFETCH = 4, 50
#: Processes of a worker, and so messages that run beside each other, where a worker dies.
BESIDE = 10
WARM_UP = 200
STAGED = "staged"

Figures = dict[str, Any]


def delivery_limit(setup: str, args: argparse.Namespace) -> Figures:
    """A poison that kills its whole worker, on a quorum queue with a delivery limit of 4, prefetch 50."""
    names = ["poison", *HEALTHY]
    with Fleet(setup, quorum=DELIVERY_LIMIT, prefetch=PREFETCH // 2) as fleet:
        fleet.dead_letters()
        calls = [["healthy", [name, args.healthy_seconds]] for name in HEALTHY]
        fleet.send([["poison", ["poison", args.poison_seconds, "worker"]], *calls])
        with fleet.supervise(1, 2) as supervisor:

            def ended() -> bool:
                gone = {*fleet.names("end"), *fleet.dead_letters(), *fleet.kept(names)}
                return gone >= set(names)

            seconds = _watch(ended, args.patience)
            deaths = len(supervisor.deaths)
        dropped, done = fleet.dead_letters(), set(fleet.names("end"))
        return {
            "worker_deaths": deaths,
            "poison_runs": fleet.names("start").count("poison"),
            "poison": "dropped" if "poison" in dropped else _fate(fleet, "poison"),
            "innocents_dropped": len(set(dropped) - {"poison"} - done),
            "innocents_done": len(done),
            "seconds": seconds,
        }


def pool_poison(setup: str, args: argparse.Namespace) -> Figures:
    """A poison that kills its pool process, on Redis, in front of 200 healthy messages; watched for 20 s."""
    with Fleet(setup) as fleet:
        fleet.send([["poison", ["poison", 0, "process"]], *(["healthy", [name, 0.02]] for name in HEALTHY)])
        with fleet.supervise(1, 2) as supervisor:
            wait_until(fleet.marks, what=lambda: f"something runs\n{supervisor.log_text()}")
            seconds = _watch(lambda: _stopped(fleet, HEALTHY), args.watch)
        return {
            "poison_runs": fleet.names("start").count("poison"),
            "poison": _fate(fleet, "poison"),
            "innocents_done": len(set(fleet.names("end"))),
            "seconds": seconds,
        }


def bystanders(setup: str, args: argparse.Namespace) -> Figures:
    """A poison that kills its whole worker after 1 s, on Redis, while nine innocents of 5 s run beside it."""
    innocents = [f"b{number}" for number in range(BESIDE - 1)]
    with Fleet(setup) as fleet:
        fleet.send([["poison", ["poison", 1, "worker"]], *(["healthy", [name, 5]] for name in innocents)])
        with fleet.supervise(args.workers, BESIDE) as supervisor:
            seconds = _watch(lambda: _stopped(fleet, innocents), args.patience)
            deaths = len(supervisor.deaths)
        kept, starts = fleet.kept(["poison", *innocents]), fleet.names("start")
        return {
            "workers": args.workers,
            "worker_deaths": deaths,
            "poison_runs": starts.count("poison"),
            "poison": _fate(fleet, "poison"),
            "innocents_done": len(set(fleet.names("end"))),
            "innocents_convicted": len(set(kept) - {"poison"}),
            "innocents_run_again": sum(starts.count(name) > 1 for name in innocents),
            "seconds": seconds,
        }


def recovery(setup: str, args: argparse.Namespace) -> Figures:
    """A worker killed from outside while ten messages run on it: their next start and their end, on Redis."""
    starts: list[float | None] = []
    ends: list[float | None] = []
    with Fleet(setup) as fleet, fleet.supervise(2, BESIDE) as supervisor:
        supervisor.wait_ready()
        for number in range(args.kills):
            names = [f"{number}.{one}" for one in range(2 * BESIDE)]
            fleet.send([["healthy", [name, args.task_seconds]] for name in names])
            wait_until(lambda: set(fleet.names("start")) >= set(names), what="all run")  # noqa: B023
            victim = supervisor.workers[number % 2]
            at = time.time()
            victim.kill_group()
            held = {m.name for m in fleet.marks() if m.event == "start" and m.worker == victim.main_pid}
            held &= set(names)
            _watch(lambda: set(fleet.names("end")) >= set(names), args.patience)  # noqa: B023
            later = [m for m in fleet.marks() if m.name in held and m.at > at]
            for event, found in (("start", starts), ("end", ends)):
                first = {m.name: m.at - at for m in reversed(later) if m.event == event}
                found += [first.get(name) for name in sorted(held)]
            wait_until(lambda: all(worker.is_ready() for worker in supervisor.workers), what="whole again")
        runs = fleet.names("start")
        return {
            "kills": args.kills,
            "task_seconds": args.task_seconds,
            "cut_off": len(starts),
            "next_start": spread(starts),
            "done": spread(ends),
            "never_back": ends.count(None),
            "most_runs": max(map(runs.count, runs)),
            "left_unacknowledged": fleet.unacknowledged(),
            "kept": len(fleet.kept(list(set(runs)))),
        }


def cost(setup: str, args: argparse.Namespace) -> Figures:
    """A no-op on Redis: throughput, processor time, time to send, and the memory of the worker afterwards."""
    with Fleet(setup) as fleet, fleet.client() as client:
        sending = fleet.send([["noop", []]] * (args.tasks + WARM_UP))
        client.rename(QUEUE, STAGED)
        with fleet.worker(loglevel="WARNING") as worker:
            for _ in range(WARM_UP):
                client.lmove(STAGED, QUEUE, "RIGHT", "RIGHT")
            _drain(client)
            time.sleep(rounds.SETTLE)
            figures = _no_ops(worker, client, args.tasks)
            members = worker.session_pids()
            return {
                **figures,
                "send_us": sending / (args.tasks + WARM_UP) * 1e6,
                "worker_mb": _memory(members),
                "processes": len(members),
                "resurrector_mb": _memory([fleet.extra.pid]) if setup == "relier" else 0.0,
            }


def _no_ops(worker: Worker, client: Any, tasks: int) -> Figures:
    """Throughput, and processor time per task without what an idle worker uses, in microseconds."""
    pool = worker.child_pids()

    def cpu() -> cputime.Cpu:
        return cputime.read(worker.main_pid, pool, client)

    before = cpu()
    time.sleep(rounds.REST)
    idle = cpu().minus(before).times(1 / rounds.REST)
    before, others, began = cpu(), _machine(), time.monotonic()
    client.rename(STAGED, QUEUE)
    _drain(client)
    seconds = time.monotonic() - began
    others = _machine() - others - cpu().minus(before).total
    # The guarded worker settles what was acknowledged; Relier counts on.
    time.sleep(rounds.SETTLE)
    used = cpu().minus(before).minus(idle.times(seconds + rounds.SETTLE)).times(1e6 / tasks)
    return {
        "tasks_per_second": tasks / seconds,
        "cpu_us": {**used._asdict(), "total": used.total},
        "others_busy": others / seconds,
    }


#: What is played, and with which setups.
SCENARIOS: dict[str, tuple[Callable[[str, argparse.Namespace], Figures], tuple[str, ...]]] = {
    "delivery-limit": (delivery_limit, ("late", "guarded")),
    "pool-poison": (pool_poison, ("late", "capped", "relier", "guarded")),
    "bystanders": (bystanders, ("late", "relier", "guarded")),
    "recovery": (recovery, ("defaults", "late", "relier", "guarded")),
    "cost": (cost, ("late", "relier", "guarded")),
}

# --- what all of them need ----------------------------------------------------------------------------


def _watch(over: Callable[[], bool], seconds: float) -> float:
    """Wait until it is over, or so long; how long it was."""
    began = time.monotonic()
    with contextlib.suppress(WaitTimeout):
        wait_until(over, seconds, interval=0.1)
    return time.monotonic() - began


def _stopped(fleet: Fleet, innocents: list[str]) -> bool:
    kept = fleet.kept(["poison", *innocents])
    return "poison" in kept and {*kept, *fleet.names("end")} >= set(innocents)


def _fate(fleet: Fleet, name: str) -> str:
    if name in fleet.kept([name]):
        return "quarantined"
    with fleet.client(db=1) as client:
        failed = '"FAILURE"' in (client.get(f"celery-task-meta-{name}") or "")
    return "given up" if failed else "not stopped"


def _drain(client: Any) -> None:
    wait_until(
        lambda: not client.exists(QUEUE) and not client.hlen("unacked"), 600, what="the queue is empty"
    )


def _machine() -> float:
    """Processor time of everybody but this process."""
    return cputime.of_machine() - cputime.of_process(os.getpid())


def _memory(pids: list[int]) -> float:
    """Megabytes of these processes, shared pages counted once (proportional set size)."""
    found = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


def _busy() -> float:
    """How many processors were busy in the last second."""
    before = cputime.of_machine()
    time.sleep(1.0)
    return cputime.of_machine() - before


def median(found: list[Figures]) -> Figures:
    """The median of each figure, for setups that were played more than once."""
    return {
        key: median([one[key] for one in found])
        if isinstance(value, dict)
        else statistics.median_low([one[key] for one in found])
        for key, value in found[0].items()
    }


def _scenario(name: str) -> str:
    if name not in SCENARIOS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SCENARIOS)}")
    return name


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("scenario", nargs="*", type=_scenario, help=f"of {', '.join(SCENARIOS)} (default: all)")
    add("--setup", action="append", choices=SETUPS, help="only this column; may be given again")
    add("--kills", type=int, default=10, help="workers killed in `recovery` (default: 10)")
    add("--task-seconds", type=float, default=3.0, help="how long a message of `recovery` takes (default: 3)")
    add("--workers", type=int, default=2, help="workers of `bystanders` (default: 2)")
    add(
        "--poison-seconds", type=float, default=0.0, help="how long the poison of `delivery-limit` runs first"
    )
    add("--healthy-seconds", type=float, default=0.02, help="how long the others there take (default: 0.02)")
    add("--tasks", type=int, default=2000, help="no-ops in a round of `cost` (default: 2000)")
    add("--rounds", type=int, default=3, help="rounds of `cost`, the columns in turn (default: 3)")
    add("--watch", type=float, default=20.0, help="seconds for which `pool-poison` is watched (default: 20)")
    add("--patience", type=float, default=180.0, help="seconds until the others give up (default: 180)")
    add("--json", type=Path, help="write all figures there too")
    return options


def main() -> None:
    args = parser().parse_args()
    wanted = args.scenario or list(SCENARIOS)
    found: list[Figures] = []
    for scenario in wanted:
        play, columns = SCENARIOS[scenario]
        columns = tuple(column for column in columns if not args.setup or column in args.setup)
        if "relier" in columns and importlib.util.find_spec("relier") is None:
            sys.exit("Relier is not installed here: pip install relier==0.1.7, or leave it out with --setup")
        for _ in range(args.rounds if scenario == "cost" else 1):
            for setup in columns:
                busy = _busy()
                figures = play(setup, args)
                row = {"scenario": scenario, "setup": setup, **figures, "busy_before": round(busy, 2)}
                found.append(row)
                print(json.dumps(row), flush=True)
    if args.json:
        versions = {name: _version(name) for name in ("celery", "kombu", "redis", "relier", "celery_poison")}
        args.json.write_text(json.dumps({"versions": versions, "found": found}, indent=1))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
