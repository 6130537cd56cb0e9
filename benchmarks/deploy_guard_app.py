"""The forty tasks of `deploy_guard.py`: under a version that begins with `bad` two of them kill.

Configured by the environment: GUARD_BROKER, GUARD_NOTES (Redis URLs), GUARD_VERSION (empty: no guard), and
GUARD_TAKES (seconds).
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import time
from typing import Any

import redis
from celery import Celery

from celery_poison import guarded

TASKS = 40
#: The task that dies always, and the one that dies in every third run.
ALWAYS, THIRD = 38, 39
#: Seconds that a run takes.
TAKES = float(os.environ.get("GUARD_TAKES", "0.02"))

VERSION = os.environ.get("GUARD_VERSION", "")


@functools.cache
def _notes(pid: int) -> Any:
    return redis.Redis.from_url(os.environ["GUARD_NOTES"])


def _dies(number: int) -> bool:
    if not VERSION.startswith("bad") or number not in (ALWAYS, THIRD):
        return False
    return number == ALWAYS or _notes(os.getpid()).incr("third") % 3 == 0


def work(number: int) -> None:
    if _dies(number):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(TAKES)
    _notes(os.getpid()).rpush("done", f"{number} {time.time()}")


app = Celery("guard", broker=os.environ.get("GUARD_BROKER"))
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
app.conf.update(poison_code_version=VERSION, poison_deploy_guard=bool(VERSION))

NAMES = [f"guard.t{number:02}" for number in range(TASKS)]


def _task(number: int) -> Any:
    def run() -> None:
        work(number)

    return guarded(app.task(name=NAMES[number], shared=False)(run))


#: Kept, since Celery makes them only when they are needed.
MADE = [_task(number) for number in range(TASKS)]
