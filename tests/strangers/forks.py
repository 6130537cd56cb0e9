"""Tasks that start processes of their own, leave them running, and then kill their worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import billiard
from celery import Celery

from celery_poison import guarded
from tests.apps.factory import build_app
from tests.apps.marks import marks


def _stay(url: str) -> None:
    """Run on in a session of its own, as a daemon does, until the test is over."""
    os.setsid()
    here = marks(url)
    here.leave("left", "", "start", os.getpid())
    over = time.monotonic() + 100
    while not here.repaired and time.monotonic() < over:
        time.sleep(0.05)
    os._exit(0)


def _fork(url: str) -> None:
    if os.fork() == 0:
        _stay(url)


def _call(url: str) -> None:
    code = f"from tests.strangers.forks import _stay; _stay({url!r})"
    subprocess.Popen([sys.executable, "-c", code], close_fds=False)


def _billiard(url: str) -> None:
    billiard.Process(target=_stay, args=(url,)).start()


WAYS: dict[str, Callable[[str], None]] = {
    "fork": _fork,
    "subprocess": _call,
    "billiard": _billiard,
}


def register(app: Celery) -> None:
    @guarded
    @app.task(bind=True, shared=False, name="fleet.leaves")
    def leaves(self: Any, way: str) -> None:
        """Leave a process running, and kill the worker's whole group."""
        url = os.environ["MARKS_URL"]
        here = marks(url)
        before = len(here.all("left"))
        here.leave("leaves", self.request.id, "start", way)
        if here.repaired:
            return
        WAYS[way](url)
        while len(here.all("left")) == before:
            time.sleep(0.02)
        os.killpg(os.getpgrp(), signal.SIGKILL)


def build(environ: Any, *, current: bool = False) -> Celery:
    app = build_app(environ, current=current)
    register(app)
    return app
