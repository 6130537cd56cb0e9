"""The app whose workers are killed: two guarded tasks that tell when they start and end.

Configured by the environment: FAILOVER_BROKER, FAILOVER_LEDGER and FAILOVER_MARKS are URLs (the last two of
Redis), FAILOVER_HEARTBEAT is ``broker_heartbeat`` or empty, FAILOVER_LIFE names one life of one worker.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any
from uuid import uuid4

import redis
from celery import Celery, Task, signals

from celery_poison import guarded, install

#: The list of all marks: JSON arrays [event, message, life, run, time].
MARKS = "marks"
#: Seconds between two marks of a victim that runs.
STEP = 0.05


class Marks:
    """Writes marks; each call waits for Redis, because the next moment may be the process' last."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url)

    def leave(self, event: str, message: str, run: str = "") -> None:
        mark = [event, message, os.environ["FAILOVER_LIFE"], run, time.time()]
        self._redis.rpush(MARKS, json.dumps(mark))


@functools.cache
def _of_process(pid: int) -> Marks:
    return Marks(os.environ["FAILOVER_MARKS"])


def marks() -> Marks:
    """This process' own connection: one that crossed a fork would be shared with the parent."""
    return _of_process(os.getpid())


def build(environ: dict[str, str]) -> Celery:
    """Return the app with its tasks and the plugin's default settings."""
    broker = environ["FAILOVER_BROKER"]
    app = Celery("failover", broker=broker, set_as_current=False)
    # The hour is what a message of a lost worker waits for in plain Celery.
    options = {"visibility_timeout": 3600} if broker.startswith("redis") else {"confirm_publish": True}
    app.conf.update(task_ignore_result=True, broker_transport_options=options)
    if environ.get("FAILOVER_HEARTBEAT"):
        app.conf.broker_heartbeat = float(environ["FAILOVER_HEARTBEAT"])
    install(app, poison_redis_url=environ["FAILOVER_LEDGER"])
    for run in (healthy, victim):
        guarded(app.task(bind=True, shared=False, name=f"failover.{run.__name__}")(run))
    return app


def healthy(self: Task, seconds: float) -> None:
    """Take a short time, as the load around a death does."""
    run = uuid4().hex[:8]
    marks().leave("start", self.request.id, run)
    time.sleep(seconds)
    marks().leave("end", self.request.id, run)


def victim(self: Task, seconds: float) -> None:
    """Take a longer time, in steps: a process that was frozen meanwhile still has the rest before it."""
    run = uuid4().hex[:8]
    marks().leave("start", self.request.id, run)
    for _ in range(round(seconds / STEP)):
        time.sleep(STEP)
        marks().leave("step", self.request.id, run)
    marks().leave("end", self.request.id, run)


@signals.task_received.connect
def _received(request: Any, **_: Any) -> None:
    marks().leave("received", request.id)


if "FAILOVER_LIFE" in os.environ:
    app = build(dict(os.environ))
