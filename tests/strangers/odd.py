"""Workers that are run in ways which few of our tests use: `celery -A tests.strangers.odd worker`.

What is odd about one stands in ODD. As a program it runs its worker in a thread:
python -m tests.strangers.odd POOL CONCURRENCY NAME
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from celery import signals

from tests.apps.factory import build_app

ODD = os.environ.get("ODD", "")

app = build_app(os.environ, current=True) if "BROKER_URL" in os.environ else None


def _count(*_: Any) -> None:
    """A handler that looks at no process."""


def _reap(*_: Any) -> None:
    """A handler that takes the exit status of whatever has ended, as servers do."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork_helper(**_: Any) -> None:
    """Start a helper that ends with its process."""
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.05)
        os._exit(0)


if ODD == "counts-sigchld":
    signals.worker_init.connect(lambda **_: signal.signal(signal.SIGCHLD, _count), weak=False)
if ODD == "reaps-sigchld":
    signals.worker_init.connect(lambda **_: signal.signal(signal.SIGCHLD, _reap), weak=False)
if ODD == "forks-helpers":
    signals.worker_process_init.connect(_fork_helper, weak=False)


def main(pool: str, concurrency: str, name: str) -> None:
    """Run a worker in a thread until SIGTERM comes, as a program with other work does."""
    assert app is not None
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    options = {"pool": pool, "concurrency": int(concurrency), "hostname": name, "loglevel": "INFO"}
    worker = app.Worker(**options, without_mingle=True, without_gossip=True)
    signals.worker_ready.connect(lambda **_: sys.stderr.write(f"{name} ready.\n"), weak=False)
    thread = threading.Thread(target=worker.start)
    thread.start()
    while not over.wait(0.1):
        if not thread.is_alive():
            sys.exit("the worker has ended by itself")
    worker.stop()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
