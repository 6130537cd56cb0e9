"""Real workers of the measured app, and queues filled by a real producer of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import redis

from celery_poison.testing import RedisServer, Worker

HERE = Path(__file__).resolve().parent
QUEUE, STAGED = "celery", "staged"
#: Seconds between two looks at the queue, and after which a worker counts as stuck.
LOOK, STUCK = 0.02, 600


def environment(
    server: RedisServer, *, guarded: bool, results: bool = False, ledger: RedisServer | None = None
) -> dict[str, str]:
    """Return what configures the app: everything in ``server``, unless the ledger has one of its own."""
    return {
        "BENCH_GUARDED": str(int(guarded)),
        "BENCH_BROKER": server.url(0),
        "BENCH_LEDGER": (ledger or server).url(1),
        "BENCH_RESULTS": server.url(2) if results else "",
    }


def worker(
    env: dict[str, str], *, pool: str = "prefork", concurrency: int = 2, defaults: bool = False
) -> Worker:
    """Return a worker of the app that is not started yet.

    Args:
        defaults: it is started as Celery does it, with mingle and gossip.
    """
    return Worker(
        "load_app",
        pool=pool,
        concurrency=concurrency,
        env=env,
        cwd=HERE,
        loglevel="WARNING",
        defaults=defaults,
    )


def publish(task: str, count: int, env: dict[str, str]) -> None:
    """Send messages by a real producer of the app.

    Args:
        task: name of a task, with its arguments behind it.
    """
    command = [sys.executable, str(HERE / "load_app.py"), str(count), *task.split()]
    subprocess.run(command, cwd=HERE, env=os.environ | env, check=True)


def hold(env: dict[str, str], task: str) -> None:
    """Hold by value what nobody sends, of these tasks.

    Args:
        task: a pattern.
    """
    verb = ["-m", "celery", "-A", "load_app", "poison", "hold", "add", "--where", "n=1", "--force"]
    command = [sys.executable, *verb, "--task", task]
    subprocess.run(command, cwd=HERE, env=os.environ | env, check=True, capture_output=True)


def looks(ledger_url: str) -> int:
    """Return how many messages workers have held against holds by value."""
    with redis.Redis.from_url(ledger_url) as client:
        return sum(int(client.hget(key, "looks") or 0) for key in client.scan_iter("*value_looks"))


@cache
def published(task: str, count: int, *, guarded: bool, results: bool = False) -> list[bytes]:
    """Return the raw messages that :func:`publish` sends, in the order of the queue's list."""
    with RedisServer() as server:
        publish(task, count, environment(server, guarded=guarded, results=results))
        with server.client(decode_responses=False) as client:
            messages: list[bytes] = client.lrange(QUEUE, 0, -1)
    if len(messages) != count:
        raise RuntimeError(f"{count} messages were sent and {len(messages)} arrived")
    return messages


def stage(client: redis.Redis, messages: Sequence[bytes]) -> None:
    """Put messages beside the queue."""
    client.rpush(STAGED, *messages)


def release(client: redis.Redis) -> None:
    """Make the queue of what was staged, in one step."""
    client.rename(STAGED, QUEUE)


def drain(client: redis.Redis, running: Worker) -> None:
    """Wait until every message is acknowledged."""
    await_empty(running, lambda: not client.llen(QUEUE) and not client.hlen("unacked"))


def await_empty(running: Worker, is_empty: Callable[[], bool]) -> None:
    """Wait until a worker has emptied its queue."""
    deadline = time.monotonic() + STUCK
    while not is_empty():
        if not running.is_alive() or time.monotonic() > deadline:
            raise RuntimeError(f"the worker does not finish\n{running.log_text()}")
        time.sleep(LOOK)
