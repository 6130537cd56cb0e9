"""The app whose workers are killed: one guarded task, innocent or not, which writes down what it does.

Configured by the environment: BLAME_BROKER, BLAME_LEDGER and BLAME_MARKS are URLs of Redis, BLAME_COUNT is
the bound of a counting rule or empty (ours), BLAME_LIFE names one life of one worker.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from typing import Any
from uuid import uuid4

import redis
from celery import Celery, Task, signals

from celery_poison import guarded, install

#: The list of all marks: JSON arrays [event, message, life, run, on trial, time].
MARKS = "marks"


@functools.cache
def _redis_of(pid: int) -> redis.Redis:
    """This process' own connection: one that crossed a fork would be shared with the parent."""
    return redis.Redis.from_url(os.environ["BLAME_MARKS"])


def leave(event: str, message: str, run: str = "", *, on_trial: bool = False) -> None:
    """Write a mark; waits for Redis, because the next moment may be the process' last."""
    mark = [event, message, os.environ["BLAME_LIFE"], run, on_trial, time.time()]
    _redis_of(os.getpid()).rpush(MARKS, json.dumps(mark))


def build(environ: dict[str, str]) -> Celery:
    """Return the app with the plugin's default settings, but for the rule."""
    app = Celery("blame", broker=environ["BLAME_BROKER"], set_as_current=False)
    app.conf.update(task_ignore_result=True)
    if environ.get("BLAME_COUNT"):
        app.conf.update(poison_trial="off", poison_max_crashes=int(environ["BLAME_COUNT"]))
    install(app, poison_redis_url=environ["BLAME_LEDGER"])
    guarded(app.task(bind=True, shared=False, name="blame.work")(work))
    return app


def work(self: Task, seconds: float, deadliness: float) -> None:
    """Take ``seconds``, or kill the worker's whole process group before that."""
    run, on_trial = uuid4().hex, self.request.poison.on_trial
    leave("start", self.request.id, run, on_trial=on_trial)
    kills = random.random() < deadliness
    time.sleep(seconds * (random.random() if kills else 1.0))
    if kills:
        leave("kill", self.request.id, run, on_trial=on_trial)
        os.killpg(os.getpgrp(), signal.SIGKILL)
        time.sleep(60)  # the kernel takes a moment
    leave("end", self.request.id, run, on_trial=on_trial)


@signals.task_received.connect
def _received(request: Any, **_: Any) -> None:
    leave("received", request.id)


if "BLAME_LIFE" in os.environ:
    app = build(dict(os.environ))
