"""What a limit costs who publishes: `apply_async` with and without `poison_max_messages`, in one run.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

import repository  # noqa: F401 - whose `tests` are meant below
from celery import Celery

from celery_poison import guarded, install
from celery_poison.testing import RedisServer
from tests.harness.servers import RabbitServer

#: What it is held to, far from the limit: publishes a second with a limit over those without.
LEAST_RATIO = 0.97
FAR = 10_000_000


def build(broker: str, ledger: str, **settings: Any) -> Any:
    app = Celery("bench", broker=broker, set_as_current=False)
    app.conf.update(task_ignore_result=True, poison_redis_url=ledger, **settings)
    install(app)

    @guarded
    @app.task(shared=False, name="bench.noop")
    def noop(n: int) -> int:
        return n

    return app.tasks["bench.noop"]


def cpu_of_calls(task: Any, calls: int) -> float:
    """Return the CPU seconds of `calls` calls in this process."""
    began = time.process_time()
    for n in range(calls):
        task.apply_async((n,))
    return time.process_time() - began


def measure(broker: str, ledger: str, server: Any, pairs: int, calls: int) -> dict[str, Any]:
    """Return ratios of processor time, and how many commands Redis got for each call."""
    tasks = {False: build(broker, ledger), True: build(broker, ledger, poison_max_messages=FAR)}
    for task in tasks.values():
        cpu_of_calls(task, 100)
    ratios, commands = [], {False: 0, True: 0}
    for number in range(pairs):
        taken: dict[bool, float] = {}
        for limited in (False, True) if number % 2 == 0 else (True, False):
            before = server.info("stats")["total_commands_processed"]
            taken[limited] = cpu_of_calls(tasks[limited], calls)
            commands[limited] += server.info("stats")["total_commands_processed"] - before - 1
        ratios.append(taken[False] / taken[True])
        with tasks[False].app.connection_for_write() as connection:
            connection.default_channel.queue_purge("celery")
    return {
        "pairs": pairs,
        "calls": pairs * calls,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_worst": round(min(ratios), 3),
        "redis_commands_per_publish": {
            "without": commands[False] / pairs / calls,
            "with": commands[True] / pairs / calls,
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", default="redis", choices=["redis", "rabbitmq"])
    parser.add_argument("--pairs", type=int, default=10, help="of rounds without and with a limit")
    parser.add_argument("--calls", type=int, default=2000, help="in each round")
    args = parser.parse_args()
    with ExitStack() as servers:
        redis = servers.enter_context(RedisServer())
        broker = redis.url(0)
        if args.broker == "rabbitmq":
            broker = servers.enter_context(RabbitServer()).url()
        row = measure(broker, redis.url(0), redis.client(), args.pairs, args.calls)
    print(json.dumps({"broker": args.broker, **row}))
    return 0 if row["ratio"] >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
