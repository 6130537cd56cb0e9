"""What workers cost that have nothing to do: plain acks-late Celery and guarded Celery in one run.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import cputime
import redis
import repository  # noqa: F401 - whose `tests` are meant below
import workers

from celery_poison.testing import RedisServer, Worker
from tests.harness.servers import RabbitServer

#: What each guarded worker is held to, in a second, and what the active monitor adds to one of them.
REQUESTS, EXECUTED, MONITOR, MAIN_MS, REDIS_MS = 3, 6, 15, 2, 0.3
#: Workers that start side by side.
TOGETHER = 4


class Setup(NamedTuple):
    """One fleet."""

    broker: str
    workers: int
    queues: int
    guarded: bool


class Marks(NamedTuple):
    """What has been counted so far; processor time in seconds."""

    at: float
    reads: int
    calls: dict[str, int]
    redis: float
    mains: list[float]


def fleet(setup: Setup, args: argparse.Namespace, stack: ExitStack) -> tuple[redis.Redis, list[Worker]]:
    """Start servers and workers; return a client of Redis, and the workers when all are ready."""
    server = stack.enter_context(RedisServer())
    env = workers.environment(server, guarded=setup.guarded)
    if setup.broker == "rabbitmq":
        env["BENCH_BROKER"] = stack.enter_context(RabbitServer()).url()
    if args.against:
        env["PYTHONPATH"] = args.against
    queues = ["celery", *(f"q{number}" for number in range(1, setup.queues))]
    started: list[Worker] = []
    for number in range(setup.workers):
        worker = Worker(
            "load_app",
            pool=args.pool,
            concurrency=args.concurrency,
            name=f"w{number}",
            queues=queues,
            env=env,
            cwd=workers.HERE,
        )
        started.append(stack.enter_context(worker))
        if number % TOGETHER == TOGETHER - 1:
            worker.wait_ready(180)
    for worker in started:
        worker.wait_ready(180)
    return server.client(), started


def look(client: redis.Redis, fleet: Sequence[Worker]) -> Marks:
    """Read all counters."""
    stats: dict[str, Any] = client.info("all")
    commands = {k.partition("_")[2]: v["calls"] for k, v in stats.items() if k.startswith("cmdstat_")}
    used = float(stats["used_cpu_user"]) + float(stats["used_cpu_sys"])
    mains = [cputime.of_process(worker.main_pid) for worker in fleet]
    return Marks(time.monotonic(), stats["total_reads_processed"], commands, used, mains)


def measure(setup: Setup, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one fleet: each second, for each worker; times in ms."""
    with ExitStack() as stack:
        client, fleet_ = fleet(setup, args, stack)
        time.sleep(args.settle)
        before = look(client, fleet_)
        time.sleep(args.seconds)
        after = look(client, fleet_)
        connections = client.info("clients")["connected_clients"] - 1
    share = (after.at - before.at) * setup.workers
    by_command = {k: (v - before.calls.get(k, 0)) / share for k, v in after.calls.items()}
    mains = [1000 * (b - a) / (after.at - before.at) for a, b in zip(before.mains, after.mains, strict=True)]
    return {
        **setup._asdict(),
        "requests": (after.reads - before.reads) / share,
        "executed": sum(by_command.values()),
        "main_ms": statistics.median(mains),
        "main_most_ms": max(mains),
        "redis_ms": 1000 * (after.redis - before.redis) / share,
        "connections": connections / setup.workers,
        "by_command": dict(sorted(by_command.items(), key=lambda row: -row[1])),
    }


def missed(row: dict[str, Any]) -> list[str]:
    """Return which targets a guarded fleet misses."""
    monitor = MONITOR / row["workers"]
    most = {"requests": REQUESTS + monitor, "executed": EXECUTED + monitor}
    most |= {"main_ms": MAIN_MS, "redis_ms": REDIS_MS}
    return [name for name, limit in most.items() if row["guarded"] and row[name] > limit]


def show(row: dict[str, Any], commands: int) -> None:
    """Print one row, and its most frequent commands."""
    what = f"{row['broker']} {'guarded' if row['guarded'] else 'plain'}"
    figures = "".join(
        f"{row[name]:9.2f}" for name in ("requests", "executed", "main_ms", "main_most_ms", "redis_ms")
    )
    print(f"{what:<18}{row['workers']:8}{row['queues']:7}{figures}{row['connections']:8.1f}", flush=True)
    for name, often in itertools.islice(row["by_command"].items(), commands):
        print(f"    {name:<24}{often:8.2f}")
    if late := missed(row):
        print(f"    misses {', '.join(late)}", flush=True)


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each fleet, plain before guarded."""
    for broker, count, queues in itertools.product(args.brokers, args.workers, args.queues):
        for guarded in args.guarded:
            yield measure(Setup(broker, count, queues, guarded), args)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--brokers", nargs="+", choices=("redis", "rabbitmq"), default=["redis", "rabbitmq"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 10, 50], help="in a fleet (1 10 50)")
    parser.add_argument("--queues", nargs="+", type=int, default=[1, 100], help="of each worker (1 100)")
    parser.add_argument("--only", choices=("plain", "guarded"), help="only these")
    parser.add_argument("--pool", default="prefork", help="of each worker (prefork)")
    parser.add_argument("--concurrency", type=int, default=2, help="of each worker (2)")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds before the measurement (30)")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds that are measured (30)")
    parser.add_argument("--against", metavar="TREE", help="a checkout whose package the workers import")
    parser.add_argument("--commands", type=int, default=0, metavar="N", help="name the N most frequent (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    args.guarded = [name == "guarded" for name in ([args.only] if args.only else ["plain", "guarded"])]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not args.json:
        titles = "".join(f"{name:>9}" for name in ("requests", "executed", "main ms", "most ms", "Redis ms"))
        print(f"{'':<18}{'workers':>8}{'queues':>7}{titles}{'conns':>8}   a second, each worker")
    found = []
    for row in rows(args):
        found.append(row)
        if not args.json:
            show(row, args.commands)
    reached = not any(missed(row) for row in found)
    if args.json:
        print(json.dumps({"figures": found, "targets_reached": reached}, indent=2))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
