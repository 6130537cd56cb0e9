"""The app that is measured: a few tasks, plain or guarded, wholly configured by the environment.

BENCH_BROKER and BENCH_LEDGER are Redis URLs, BENCH_RESULTS one too or empty (results are ignored
then), BENCH_GUARDED is 1 or 0; BENCH_KOMBU_RECEIVE=1 leaves receiving to kombu, BENCH_WITHOUT names
extensions that are left out. Run as a script, it publishes: ``python load_app.py COUNT TASK [SECONDS]``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from celery import Celery

#: How long the tasks that are not no-ops take.
TASK_SECONDS = 0.001

GUARDED = os.environ.get("BENCH_GUARDED") == "1"
RESULTS = os.environ.get("BENCH_RESULTS") or None


def noop(n: int = 0) -> None:
    """Return at once: nothing but what Celery and the plugin cost."""


def sleep_1ms(n: int = 0) -> None:
    """Wait, as a task does that asks some other service."""
    time.sleep(TASK_SECONDS)


def busy_1ms(n: int = 0) -> None:
    """Compute: by processor time, so that a preempted task is not let off its work."""
    end = time.thread_time() + TASK_SECONDS
    while time.thread_time() < end:
        pass


def wait(seconds: float) -> None:
    """Stay in the running state for a while."""
    time.sleep(seconds)


def die() -> None:
    """Kill the process that runs this."""
    os.kill(os.getpid(), signal.SIGKILL)


app = Celery("load", broker=os.environ.get("BENCH_BROKER"), backend=RESULTS)
# Without the plugin too, a lost message must come back: that is what the guarded app is compared with.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=RESULTS is None)
# With heartbeats Celery 5.7's green pools take ten messages a second from RabbitMQ, whatever a message costs.
app.conf.broker_heartbeat = 0

# Named, because a publishing process knows this module as __main__.
TASKS: dict[str, Any] = {
    function.__name__: app.task(function, name=f"load.{function.__name__}")
    for function in (noop, sleep_1ms, busy_1ms, wait, die)
}

if GUARDED:
    from celery_poison import extensions, guarded, install

    left_out = os.environ.get("BENCH_WITHOUT", "").split()
    extensions.ORDER = tuple(name for name in extensions.ORDER if name not in left_out)
    install(app, poison_redis_url=os.environ["BENCH_LEDGER"])
    for task in TASKS.values():
        guarded(task)

if GUARDED and os.environ.get("BENCH_KOMBU_RECEIVE"):
    import kombu

    from celery_poison.worker import worker

    vars(worker)["guarded_connection"] = lambda *_: kombu.Connection


def publish(count: int, name: str, *arguments: float) -> None:
    """Send ``count`` messages of one task."""
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            TASKS[name].apply_async(arguments, producer=producer)


if __name__ == "__main__":
    publish(int(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:]))
