"""What the plugin costs: plain acks-late Celery and guarded Celery in turn, in one run.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import celery
import figures
import kombu
import redis
import rounds
from rounds import Round, Setup

KINDS = ("noop", "sleep_1ms", "busy_1ms")
PARTIES = ("main", "children", "redis")
#: What the plugin is held to: no-op throughput of guarded over plain, and processor time added per task.
LEAST_RATIO, MOST_CPU = 0.95, 60e-6
#: Busy processors below which the machine counts as quiet.
QUIET = 0.2

Pair = tuple[Round, Round]


def measure(kind: str, args: argparse.Namespace) -> list[Pair]:
    """Return pairs of (plain, guarded) rounds; which of the two goes first changes from pair to pair."""
    pairs = []
    for number in range(args.pairs):
        if args.patience and not rounds.machine_is_quiet(QUIET, args.patience):
            _say(args, "  the machine does not become quiet")
        order = (False, True) if number % 2 == 0 else (True, False)
        with_results = args.results == "redis"
        worker = args.pool, args.concurrency, args.celery_defaults
        rest = kind, args.tasks, with_results, *worker, args.broker, args.delay_ms / 1000
        old = args.against and str(args.against.resolve())
        more = {"hold": args.hold, "without": " ".join(args.without)}
        setups = {True: Setup(True, *rest, **more), False: Setup(bool(old), *rest, old or "")}
        if args.cluster:
            setups = {True: Setup(True, *rest, "", "cluster"), False: Setup(True, *rest, "", "alone")}
        done = {guarded: rounds.run(setups[guarded]) for guarded in order}
        pairs.append((done[False], done[True]))
        _say(args, f"  {kind} {number + 1}/{args.pairs}: {_line(*pairs[-1], args.tasks)}")
    return pairs


def summary(kind: str, pairs: Sequence[Pair], tasks: int) -> dict[str, Any]:
    """Return every figure of one kind of task; times in seconds."""
    added = [guarded.cpu.minus(plain.cpu) for plain, guarded in pairs]
    return {
        "task": kind,
        "pairs": len(pairs),
        "tasks": tasks,
        "throughput": {
            "plain": figures.estimate([tasks / plain.seconds for plain, _ in pairs])._asdict(),
            "guarded": figures.estimate([tasks / guarded.seconds for _, guarded in pairs])._asdict(),
            "ratio": figures.estimate([p.seconds / g.seconds for p, g in pairs])._asdict(),
        },
        "cpu_plain": _by_party([plain.cpu for plain, _ in pairs]),
        "cpu_added": _by_party(added),
        "idle_plain": _by_party([plain.idle for plain, _ in pairs]),
        "idle_guarded": _by_party([guarded.idle for _, guarded in pairs]),
        "others": figures.estimate([r.others for pair in pairs for r in pair])._asdict(),
        "rounds": [[r._asdict() for r in pair] for pair in pairs],
    }


def _by_party(used: Sequence[Any]) -> dict[str, dict[str, float]]:
    parties = {name: [getattr(cpu, name) for cpu in used] for name in (*PARTIES, "total")}
    return {name: figures.estimate(values)._asdict() for name, values in parties.items()}


def verdict(found: Sequence[dict[str, Any]]) -> bool:
    """Tell whether no-ops reach both targets."""
    noop = next((one for one in found if one["task"] == "noop"), None)
    if noop is None:
        return True
    ratio, added = noop["throughput"]["ratio"]["median"], noop["cpu_added"]["total"]["median"]
    return bool(ratio >= LEAST_RATIO and added <= MOST_CPU)


# --- what is printed ---------------------------------------------------------------------------------


def show(one: dict[str, Any]) -> None:
    """Print the figures of one kind of task."""
    speed = one["throughput"]
    ratio = speed["ratio"]
    print(f"\n{one['task']}: {one['pairs']} pairs of {one['tasks']} tasks")
    print(f"  plain    {speed['plain']['median']:8.0f} tasks/s")
    print(f"  guarded  {speed['guarded']['median']:8.0f} tasks/s")
    print(
        f"  ratio    {ratio['median']:8.3f}   95 % of the median {ratio['low']:.3f} to {ratio['high']:.3f},"
        f" single pairs {ratio['least']:.3f} to {ratio['most']:.3f}; target on no-ops {LEAST_RATIO}"
    )
    print("  processor time, µs per task        plain     added    95 % of the median")
    for name in (*PARTIES, "total"):
        plain, added = one["cpu_plain"][name], one["cpu_added"][name]
        target = f"; target {MOST_CPU * 1e6:.0f}" if name == "total" else ""
        print(
            f"    {name:<32}{plain['median'] * 1e6:8.1f}  {added['median'] * 1e6:8.1f}"
            f"    {added['low'] * 1e6:.1f} to {added['high'] * 1e6:.1f}{target}"
        )
    idle = [one[f"idle_{name}"]["total"]["median"] * 1e3 for name in ("plain", "guarded")]
    print(f"  an idle worker and its Redis: plain {idle[0]:.1f}, guarded {idle[1]:.1f} ms of processor per s")
    others = one["others"]
    print(f"  processors busy with other things: median {others['median']:.2f}, most {others['most']:.2f}")


def _line(plain: Round, guarded: Round, tasks: int) -> str:
    added = guarded.cpu.minus(plain.cpu).times(1e6)
    parties = ", ".join(f"{name} {getattr(added, name):+.0f}" for name in PARTIES)
    return (
        f"plain {tasks / plain.seconds:.0f}/s, guarded {tasks / guarded.seconds:.0f}/s,"
        f" ratio {plain.seconds / guarded.seconds:.3f}, µs added: {parties} = {added.total:+.0f}"
        f" (others {plain.others:.2f}, {guarded.others:.2f})"
    )


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def environment(args: argparse.Namespace) -> dict[str, Any]:
    """Return where and how this was measured."""
    return {
        "python": platform.python_version(),
        "celery": celery.__version__,
        "kombu": kombu.__version__,
        "redis_py": redis.__version__,
        "processors": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "worker": f"{args.pool} -c {args.concurrency}"
        + ("" if args.celery_defaults else " --without-gossip --without-mingle"),
        "broker": args.broker,
        "redis_delay_ms": args.delay_ms,
        "results": args.results,
        "journal": "attempts",
        "plain": _beside(args),
        "receive": "kombu" if args.kombu_receive else "in one step",
        "hold": args.hold or "none",
        "without": " ".join(args.without) or "nothing",
    }


def _beside(args: argparse.Namespace) -> str:
    if args.cluster:
        return "guarded, its ledger on one Redis and not on a cluster"
    return f"guarded by {args.against.name}" if args.against else "Celery alone"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of rounds for each kind of task (10)")
    parser.add_argument("--tasks", type=int, default=5000, help="messages in one round (5000)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of tasks (all)")
    parser.add_argument(
        "--results", choices=("ignored", "redis"), default="ignored", help="of both apps alike (ignored)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        metavar="S",
        help="longest wait for a quiet machine before each pair (0)",
    )
    parser.add_argument("--pool", default="prefork", help="of the worker (prefork)")
    parser.add_argument("--concurrency", type=int, default=2, help="of the worker (2)")
    parser.add_argument(
        "--broker", choices=("redis", "rabbitmq"), default="redis", help="beside the ledger's Redis (redis)"
    )
    parser.add_argument(
        "--delay-ms", type=float, default=0.0, help="added to each round trip to Redis, by a proxy (0)"
    )
    parser.add_argument("--celery-defaults", action="store_true", help="with mingle and gossip")
    parser.add_argument(
        "--kombu-receive", action="store_true", help="without the gain of receiving in one step"
    )
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="guarded, by another checkout, in the place of plain"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="guarded twice: the ledger on a cluster, and on one Redis"
    )
    parser.add_argument(
        "--hold", choices=tuple(rounds.HOLDS), default="", help="a hold by value that names the task, or not"
    )
    parser.add_argument("--without", nargs="+", default=(), metavar="ROOM", help="extensions left out")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    args = parser.parse_args(argv)
    if args.cluster and (args.hold or args.without):
        parser.error("--cluster compares ledgers: leave out --hold and --without")
    return args


def main() -> int:
    args = parse()
    if args.kombu_receive:
        os.environ["BENCH_KOMBU_RECEIVE"] = "1"
    where = environment(args)
    found = [summary(kind, measure(kind, args), args.tasks) for kind in args.kinds]
    reached = verdict(found)
    if args.json:
        print(json.dumps({"environment": where, "figures": found, "targets_reached": reached}, indent=2))
    else:
        print(", ".join(f"{name} {value}" for name, value in where.items()))
        for one in found:
            show(one)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
