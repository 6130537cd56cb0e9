"""What a limit costs who publishes: `apply_async` with and without `poison_max_messages`, in one run.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from celery import Celery

from celery_poison import guarded, install
from celery_poison.testing import RedisServer

#: What it is held to, far from the limit: publishes a second with a limit over those without.
LEAST_RATIO = 0.97
FAR = 10_000_000


def build(broker: str, **settings: Any) -> Any:
    app = Celery("bench", broker=broker, set_as_current=False)
    app.conf.update(task_ignore_result=True, **settings)
    install(app)

    @guarded
    @app.task(shared=False, name="bench.noop")
    def noop(n: int) -> int:
        return n

    return app.tasks["bench.noop"]


def cpu_of_calls(task: Any, calls: int, server: Any) -> tuple[float, int]:
    """Return the CPU seconds of `calls` calls in this process, and the commands that Redis got meanwhile."""
    before = server.info("stats")["total_commands_processed"]
    began = time.process_time()
    for n in range(calls):
        task.apply_async((n,))
    taken = time.process_time() - began
    return taken, server.info("stats")["total_commands_processed"] - before - 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10, help="of rounds without and with a limit")
    parser.add_argument("--calls", type=int, default=2000, help="in each round")
    args = parser.parse_args()
    with RedisServer() as redis:
        client = redis.client()
        tasks = {False: build(redis.url(0)), True: build(redis.url(0), poison_max_messages=FAR)}
        for task in tasks.values():
            cpu_of_calls(task, 100, client)
        ratios, commands = [], {False: 0, True: 0}
        for number in range(args.pairs):
            order = (False, True) if number % 2 == 0 else (True, False)
            taken = {limited: cpu_of_calls(tasks[limited], args.calls, client) for limited in order}
            ratios.append(taken[False][0] / taken[True][0])
            for limited, (_, count) in taken.items():
                commands[limited] += count
            client.flushdb()
    calls = args.calls * args.pairs
    row = {
        "pairs": args.pairs,
        "calls": args.calls,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_worst": round(min(ratios), 3),
        "commands_per_publish": {"without": commands[False] / calls, "with": commands[True] / calls},
    }
    print(json.dumps(row))
    return 0 if row["ratio"] >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
