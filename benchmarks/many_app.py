"""The tasks of `many.py` and `outsiders.py`, plain or guarded: marks tell when each run starts and ends.

Configured by the environment: MANY_BROKER and MANY_MARKS are URLs; MANY_LEDGER is the ledger's, empty for
plain Celery; MANY_QUEUE is the type of the queue on RabbitMQ.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from typing import Any

import redis
from celery import Celery, signals
from kombu import Exchange, Queue

QUEUE = "many"
#: The list of all marks, JSON arrays [event, message, time]; and what says that the first worker is to die.
MARKS, STRUCK = "marks", "struck"
#: Seconds for which a run takes that is to be cut off; and between two looks whether it is.
ENDLESS, LOOK = 600.0, 0.05
#: Seconds after which a poison kills the process group that it runs in.
POISON_AFTER = 0.3


@functools.cache
def _notes(pid: int) -> Any:
    return redis.Redis.from_url(os.environ["MANY_MARKS"])


def mark(event: str, name: str) -> None:
    """Wait until it is written: the next moment may be this process' last."""
    _notes(os.getpid()).rpush(MARKS, json.dumps([event, name, time.time()]))


def waits(name: str, seconds: float) -> None:
    """Wait, as for a reply: for ever until the first worker has been struck."""
    is_struck = _notes(os.getpid()).exists(STRUCK)
    mark("start", name)
    time.sleep(seconds if is_struck else ENDLESS)
    mark("end", name)


def kills(name: str, after: float) -> None:
    """Kill everything in its process group: the worker, or the cell that tries it."""
    mark("start", name)
    while not _notes(os.getpid()).exists(STRUCK):
        time.sleep(LOOK)
    time.sleep(after)
    mark("kill", name)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def burns(name: str, seconds: float) -> None:
    """Use up so much processor time."""
    mark("start", name)
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    mark("end", name)


@signals.task_received.connect
def _received(request: Any, **_: Any) -> None:
    mark("received", request.id)


def build(environ: dict[str, str]) -> Celery:
    """Return the app with its tasks."""
    broker, kind = environ["MANY_BROKER"], environ["MANY_QUEUE"]
    app = Celery("many", broker=broker, set_as_current=False)
    arguments = {"x-queue-type": kind} if broker.startswith("amqp") else None
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        task_default_queue=QUEUE,
        task_queues=[Queue(QUEUE, Exchange(QUEUE), QUEUE, queue_arguments=arguments)],
        broker_connection_retry_on_startup=True,
    )
    if environ["MANY_LEDGER"]:
        from celery_poison import install

        install(app, poison_redis_url=environ["MANY_LEDGER"], poison_guard_all=True)
    options = {"shared": False, "acks_late": True, "reject_on_worker_lost": True}
    for run in (waits, kills, burns):
        app.task(run, name=f"many.{run.__name__}", **options)
    return app


if "MANY_BROKER" in os.environ:
    app = build(dict(os.environ))
