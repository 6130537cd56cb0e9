"""What the outbox costs a caller, and how fast a relay is: `apply_async` with and without it, in one run.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import repository  # noqa: F401 - whose `tests` are meant below
from celery import Celery

from celery_poison import guarded, install
from celery_poison.extensions.outbox.relay import Rounds
from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer
from tests.harness.servers import RabbitServer

#: What it is held to: time of a call with the outbox over that without; messages a second of one relay.
MOST_RATIO, LEAST_RELAYED = 1.5, 5000


def build(broker: str, ledger: str) -> Any:
    app = Celery("bench", broker=broker, set_as_current=False)
    app.conf.update(poison_redis_url=ledger, task_ignore_result=True)
    install(app)

    @guarded
    @app.task(shared=False, name="bench.noop")
    def noop(n: int) -> int:
        return n

    return app.tasks["bench.noop"]


def seconds_of_calls(task: Any, calls: int, *, outbox: bool) -> float:
    """Return the time that `calls` calls take one after the other."""
    began = time.perf_counter()
    for n in range(calls):
        task.apply_async((n,), outbox=outbox)
    return time.perf_counter() - began


def relayed_per_second(task: Any, messages: int) -> float:
    """Store messages, then let one relay send them; return its rate."""
    seconds_of_calls(task, messages, outbox=True)
    rounds = Rounds(plugin_of(task.app), trouble=False, in_trouble=lambda: None)
    began = time.perf_counter()
    while rounds.once() == 0.0:
        pass
    taken = time.perf_counter() - began
    rounds.close()
    return messages / taken


def measure(name: str, broker: str, ledger: str, args: argparse.Namespace) -> dict[str, Any]:
    task = build(broker, ledger)
    for outbox in (False, True):
        seconds_of_calls(task, 50, outbox=outbox)
    ratios, plain, stored = [], [], []
    for number in range(args.pairs):
        order = (False, True) if number % 2 == 0 else (True, False)
        taken = {outbox: seconds_of_calls(task, args.calls, outbox=outbox) for outbox in order}
        plain.append(taken[False] / args.calls)
        stored.append(taken[True] / args.calls)
        ratios.append(taken[True] / taken[False])
        relayed_per_second(task, 1)  # empty it
    rate = statistics.median(relayed_per_second(task, args.messages) for _ in range(3))
    return {
        "broker": name,
        "pairs": args.pairs,
        "calls": args.calls,
        "plain_us": round(statistics.median(plain) * 1e6, 1),
        "outbox_us": round(statistics.median(stored) * 1e6, 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_worst": round(max(ratios), 3),
        "relayed_per_second": round(rate),
    }


@contextmanager
def brokers(wanted: list[str]) -> Iterator[Iterator[tuple[str, str, str]]]:
    """Yield name, broker's URL and ledger's URL of each broker that is wanted and installed."""
    with RedisServer() as redis:

        def each() -> Iterator[tuple[str, str, str]]:
            if "redis" in wanted:
                yield "redis", redis.url(0), redis.url(0)
            if "rabbitmq" in wanted and RabbitServer.available():
                with RabbitServer() as rabbit:
                    yield "rabbitmq", rabbit.url(), redis.url(1)

        yield each()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", nargs="+", default=["redis", "rabbitmq"], choices=["redis", "rabbitmq"])
    parser.add_argument("--pairs", type=int, default=10, help="of rounds without and with the outbox")
    parser.add_argument("--calls", type=int, default=2000, help="in each round")
    parser.add_argument("--messages", type=int, default=20_000, help="for the relay, three times")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    args = parser.parse_args()
    with brokers(args.broker) as found:
        figures = [measure(*each, args) for each in found]
    for row in figures:
        print(json.dumps(row))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    late = [r for r in figures if r["ratio"] > MOST_RATIO]
    slow = [r for r in figures if r["broker"] == "redis" and r["relayed_per_second"] < LEAST_RELAYED]
    return 1 if late or slow else 0


if __name__ == "__main__":
    sys.exit(main())
