"""The same three tasks under Celery alone, its own cap, Relier and celery_poison.

Configured by the environment: COMPARE_SETUP is one of SETUPS; COMPARE_BROKER, COMPARE_LEDGER and
COMPARE_MARKS are URLs (the last two of Redis); COMPARE_QUEUE holds the queue's arguments as JSON;
COMPARE_PREFETCH is the prefetch multiplier. Run as a script it sends the calls that it reads from standard
input, ``[[task, [argument, …]], …]``, and prints how many seconds that took.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import time
from typing import Any

import redis
from celery import Celery
from kombu import Exchange, Queue

#: ``defaults``: Celery's own; ``late``: acks_late and reject_on_worker_lost; ``capped``: that and
#: retry_on_worker_lost of Celery 5.7; ``guarded``: that of ``late`` and celery_poison.
SETUPS = ("defaults", "late", "capped", "relier", "guarded")
QUEUE = "default"
#: The list of all marks: JSON arrays [event, message, process id of the worker, time].
MARKS = "marks"
#: Celery's default for the pause before a retry is three minutes.
RETRY_DELAY = 1


@functools.cache
def _marks(pid: int) -> Any:
    return redis.Redis.from_url(os.environ["COMPARE_MARKS"])


def mark(event: str, name: str) -> None:
    """Wait until it is written: the next moment may be this process' last."""
    _marks(os.getpid()).rpush(MARKS, json.dumps([event, name, os.getppid(), time.time()]))


def healthy(name: str, seconds: float) -> None:
    mark("start", name)
    time.sleep(seconds)
    mark("end", name)


def poison(name: str, seconds: float, victim: str) -> None:
    """Kill its pool process, or everything in its process group: the worker, or the cell that tries it."""
    mark("start", name)
    time.sleep(seconds)
    if victim == "worker":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def noop() -> None:
    """Nothing but what Celery and the layers above it cost."""


async def noop_async() -> None:
    """The same as Relier likes it best: a plain function takes a thread more."""


def build(environ: dict[str, str]) -> Celery:
    """Return the app with its tasks."""
    return _relier_app() if environ["COMPARE_SETUP"] == "relier" else _celery_app(environ)


def _celery_app(environ: dict[str, str]) -> Celery:
    setup = environ["COMPARE_SETUP"]
    app = Celery("compare", broker=environ["COMPARE_BROKER"], set_as_current=False)
    arguments = json.loads(environ["COMPARE_QUEUE"] or "null")
    app.conf.update(
        # As in the app that Relier brings along, so that nothing but the layer itself is compared.
        result_backend=environ["COMPARE_LEDGER"],
        task_track_started=True,
        worker_prefetch_multiplier=int(environ["COMPARE_PREFETCH"]),
        task_default_queue=QUEUE,
        task_queues=[Queue(QUEUE, Exchange(QUEUE), QUEUE, queue_arguments=arguments)],
        broker_connection_retry_on_startup=True,
    )
    options: dict[str, Any] = {"shared": False}
    if setup != "defaults":
        options |= {"acks_late": True, "reject_on_worker_lost": True}
    if setup == "capped":
        options |= {"retry_on_worker_lost": True, "default_retry_delay": RETRY_DELAY}
    if setup == "guarded":
        from celery_poison import install

        install(app, poison_redis_url=environ["COMPARE_LEDGER"], poison_guard_all=True)
    for run in (healthy, poison, noop):
        app.task(run, name=f"compare.{run.__name__}", **options)
    return app


def _relier_app() -> Celery:
    from relier import rl_task
    from relier.tasks.app import celery_app

    # idempotent=True is what its manual advises against second runs; a no-op is measured without.
    for run in (healthy, poison):
        rl_task(name=f"compare.{run.__name__}", idempotent=True)(run)
    rl_task(name="compare.noop")(noop_async)
    return celery_app


def send(app: Celery, calls: list[tuple[str, list[Any]]]) -> None:
    """Send by whatever the layer's manual recommends."""
    tasks = [(app.tasks[f"compare.{name}"], arguments) for name, arguments in calls]
    if os.environ["COMPARE_SETUP"] == "relier":

        async def push() -> None:
            for task, arguments in tasks:
                await task.apush(*arguments)

        asyncio.run(push())
        return
    with app.producer_pool.acquire(block=True) as producer:
        for task, arguments in tasks:
            named = {"task_id": arguments[0]} if arguments else {}
            task.apply_async(arguments, producer=producer, **named)


if "COMPARE_SETUP" in os.environ:
    app = build(dict(os.environ))

if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    began = time.perf_counter()
    send(app, wanted)
    print(time.perf_counter() - began)
