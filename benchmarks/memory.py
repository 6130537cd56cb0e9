"""What the ledger takes in Redis: bytes per message that runs, and bytes of journal per finished task.

See README.md beside this file for what is measured and printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
import workers

from celery_poison.ledger import Keys
from celery_poison.testing import RedisServer, Worker, wait_until

#: Bytes that one healthy message may take while it runs.
MOST_BYTES = 500
#: Longer than it takes to look: the tasks are cut off by the end of their worker.
LONG = 3600
WARM_UP = 50
KEYS = Keys()


class Bytes(NamedTuple):
    """The ledger's memory: by key as MEMORY USAGE counts it, and all of the server's."""

    by_key: dict[str, int]
    server: int


def weigh(client: redis.Redis) -> Bytes:
    """Return what every key of the ledger takes; every element is looked at, nothing is sampled."""
    keys = sorted(client.scan_iter(count=1000))
    usage = {key: int(client.memory_usage(key, samples=0) or 0) for key in keys}
    return Bytes(usage, int(client.info("memory")["used_memory"]))


def per_unit(before: Bytes, after: Bytes, count: int) -> dict[str, Any]:
    """Return the bytes that each of ``count`` units added, by key, in sum, and to the whole server."""
    names = before.by_key.keys() | after.by_key.keys()
    added = {name: (after.by_key.get(name, 0) - before.by_key.get(name, 0)) / count for name in sorted(names)}
    changed = {name: value for name, value in added.items() if value}
    return {
        "count": count,
        "by_key": changed,
        "keys": sum(added.values()),
        "server": (after.server - before.server) / count,
    }


def running(count: int) -> dict[str, Any]:
    """Measure ``count`` messages that all run at the same time, in a pool of as many threads."""

    def all_run(client: redis.Redis, broker: redis.Redis, worker: Worker) -> None:
        wait_until(lambda: client.hlen(KEYS.running) == count, 120, what="all messages run")

    return _added(f"wait {LONG}", count, all_run, pool="threads", concurrency=count)


def finished(count: int) -> dict[str, Any]:
    """Measure what ``count`` tasks leave behind that ran, were acknowledged and settled."""

    def all_settled(client: redis.Redis, broker: redis.Redis, worker: Worker) -> None:
        workers.drain(broker, worker)
        wait_until(lambda: _is_settled(client), 60, what="everything is settled")
        if client.xlen(KEYS.journal) < count + WARM_UP:
            raise RuntimeError(f"{client.xlen(KEYS.journal)} journal entries of {count + WARM_UP} tasks")

    return _added("noop", count, all_settled, pool="prefork", concurrency=2)


Reached = Callable[[redis.Redis, redis.Redis, Worker], None]


def _added(task: str, count: int, reached: Reached, *, pool: str, concurrency: int) -> dict[str, Any]:
    """Weigh a ledger that has a Redis of its own, before and after a load."""
    warm_up = workers.published("noop", WARM_UP, guarded=True)
    messages = workers.published(task, count, guarded=True)
    with RedisServer() as server, RedisServer() as store:
        env = workers.environment(server, guarded=True, ledger=store)
        worker = workers.worker(env, pool=pool, concurrency=concurrency)
        with server.client() as broker, store.client(1) as client:
            try:
                worker.start()
                _load(broker, warm_up)
                workers.drain(broker, worker)
                wait_until(lambda: _is_settled(client), 60, what="the warm-up is settled")
                before = weigh(client)
                _load(broker, messages)
                reached(client, broker, worker)
                time.sleep(1.0)  # what is on its way to the ledger arrives
                return per_unit(before, weigh(client), count)
            finally:
                worker.kill_group()
                worker.wait()


def _load(broker: redis.Redis, messages: Sequence[bytes]) -> None:
    workers.stage(broker, messages)
    workers.release(broker)


def _is_settled(client: redis.Redis) -> bool:
    return not client.exists(KEYS.running, KEYS.done)


def show(title: str, found: dict[str, Any], target: str = "") -> None:
    """Print the figures of one measurement."""
    print(f"\n{title} (n = {found['count']})")
    for name, value in found["by_key"].items():
        print(f"  {name:<28}{value:8.1f} bytes")
    print(f"  {'every key':<28}{found['keys']:8.1f} bytes{target}")
    print(f"  {'used_memory of the server':<28}{found['server']:8.1f} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--running", type=int, default=1000, help="messages that run together (1000)")
    parser.add_argument("--finished", type=int, default=20_000, help="tasks that finish (20000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    found = {"running": running(args.running), "finished": finished(args.finished)}
    reached = max(found["running"]["keys"], found["running"]["server"]) < MOST_BYTES
    if args.json:
        print(json.dumps({**found, "target_reached": reached}, indent=2))
    else:
        show("a healthy message while it runs", found["running"], f"; target under {MOST_BYTES}")
        show("a healthy task that has finished, journal on", found["finished"])
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
