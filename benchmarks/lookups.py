"""What it costs when every message is looked up, as after a reconnect of the broker.

Rounds of first deliveries and of redelivered messages in turn, each with a fresh Redis and a fresh guarded
worker; broker and ledger are behind a proxy that delays. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

import figures
import repository  # noqa: F401 - whose `tests` are meant below
import workers

from celery_poison.testing import RedisServer
from tests.harness.proxy import TcpProxy

TASK = "noop"
WARM_UP = 200
#: What it is held to: throughput of redelivered messages over that of first deliveries.
LEAST_RATIO = 0.8


def redelivered(message: bytes) -> bytes:
    """Return a message as kombu puts it back into its queue."""
    payload = json.loads(message)
    payload["headers"]["redelivered"] = True
    payload["properties"]["delivery_info"]["redelivered"] = True
    return json.dumps(payload).encode()


def throughput(messages: Sequence[bytes], args: argparse.Namespace) -> float:
    """Return messages per second, from the moment the queue is there to the last acknowledgement."""
    with RedisServer() as server, TcpProxy("127.0.0.1", server.port) as proxy:
        raw = server.client(decode_responses=False)
        proxy.delay = args.delay_ms / 2000  # each way
        direct = workers.environment(server, guarded=True)
        env = {name: proxy.url(value) if "://" in value else value for name, value in direct.items()}
        with workers.worker(env, pool=args.pool, concurrency=args.concurrency) as worker:
            workers.stage(raw, messages[:WARM_UP])
            workers.release(raw)
            workers.drain(raw, worker)
            workers.stage(raw, messages[WARM_UP:])
            began = time.monotonic()
            workers.release(raw)
            workers.drain(raw, worker)
            return (len(messages) - WARM_UP) / (time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=1.0, help="of a round trip to Redis")
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--concurrency", type=int, default=2)
    args = parser.parse_args()
    first = workers.published(TASK, args.tasks + WARM_UP, guarded=True)
    again = [redelivered(message) for message in first]
    ratios = []
    for number in range(args.pairs):
        order = (first, again) if number % 2 == 0 else (again, first)
        found = {id(messages): throughput(messages, args) for messages in order}
        plain, looked_up = found[id(first)], found[id(again)]
        ratios.append(looked_up / plain)
        print(
            f"{number + 1}/{args.pairs}: first deliveries {plain:.0f}/s, redelivered {looked_up:.0f}/s,"
            f" ratio {ratios[-1]:.2f}",
            flush=True,
        )
    ratio = figures.estimate(ratios)
    print(f"ratio {ratio}, at least {LEAST_RATIO}")
    return 0 if ratio.median >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
