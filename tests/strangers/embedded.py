"""A program that starts and stops a worker in a thread, some times, and tells what each has left behind.

Run: python -m tests.strangers.embedded BROKER BACKEND POOL TIMES guarded|plain
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import weakref
from collections import Counter
from typing import Any

import celery.contrib.testing.tasks  # noqa: F401  # registers the task that it pings with
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker

BROKER, BACKEND, POOL, TIMES, KIND = sys.argv[1:] if __name__ == "__main__" else ("",) * 5

SETTINGS = {
    "broker_heartbeat": 1,  # its loop sleeps in between, and finds out only then that it is to end
    "broker_transport_options": {"polling_interval": 0.01},
    "poison_heartbeat_interval": 0.3,
    "poison_activation_interval": 1.0,
}

app = Celery("embedded", broker=BROKER, backend=BACKEND)
app.conf.update(SETTINGS)


def add(x: int, y: int) -> int:
    return x + y


def thread_kinds() -> list[str]:
    """Names without the numbers that tell threads of one kind apart; of threads of Celery's pool none."""
    names = [thread.name.partition(" (")[0].rstrip("-_0123456789") for thread in threading.enumerate()]
    return sorted(name for name in names if not name.startswith("ThreadPoolExecutor"))


def _open_files() -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            kinds[os.readlink(f"/proc/self/fd/{fd}").partition(":")[0].partition("/pymp-")[0]] += 1
        except OSError:
            continue  # the one by which they are listed
    return dict(kinds)


def left(workers: list[weakref.ref[Any]]) -> dict[str, Any]:
    gc.collect()
    listening = {name: len(getattr(signals, name).receivers or ()) for name in signals.__all__}
    return {
        "threads": thread_kinds(),
        "files": _open_files(),
        "receivers": {name: count for name, count in listening.items() if count and "publish" not in name},
        "connection": f"{app.amqp.Connection.__module__}.{app.amqp.Connection.__name__}",
        "workers": sum(worker() is not None for worker in workers),
    }


def main() -> None:
    task = app.task(add)
    if KIND == "guarded":
        from celery_poison import guarded

        task = guarded(task)
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("celery_poison").addHandler(handler)
    found, workers = [], []
    for _ in range(int(TIMES)):
        with start_worker(app, pool=POOL, concurrency=2, loglevel="WARNING") as worker:
            assert task.delay(1, 2).get(timeout=30) == 3
            workers.append(weakref.ref(worker))
            del worker
        found.append(left(workers))
    sys.stdout.write(json.dumps({"left": found, "warnings": warnings}))


if __name__ == "__main__":
    main()
