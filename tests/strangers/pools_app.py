"""Pools of a project's own, named by CELERY_CUSTOM_WORKER_POOL, and tasks for them."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import celery.app.trace as tracing
from celery import Celery
from celery.concurrency.solo import TaskPool as SoloPool

from celery_poison import guarded
from tests.apps.factory import DEFAULTS

_build_tracer = tracing.build_tracer


def _build_awaiting(name: str, task: Any, *args: Any, **options: Any) -> Any:
    run = task.run
    if inspect.iscoroutinefunction(run):
        task.run = lambda *args, **kwargs: asyncio.run(run(*args, **kwargs))
    return _build_tracer(name, task, *args, **options)


class Awaiting(SoloPool):
    """It changes Celery's tracer before it starts, as asyncio pools on PyPI do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        theirs = sorted(name for name in sys.modules if name.startswith(("celery.", "billiard.")))
        if "IMPORTED" in os.environ:
            with open(os.environ["IMPORTED"], "w") as file:
                json.dump([name for name in theirs if not name.startswith("celery.contrib")], file)
        tracing.build_tracer = _build_awaiting
        super().__init__(*args, **options)


def __getattr__(name: str) -> Any:
    """Make the pools that import more only if they are asked for."""
    if name == "Processes":
        from celery.concurrency.prefork import TaskPool

        return type(name, (TaskPool,), {"__module__": __name__})
    if name == "Threads":
        from celery.concurrency.thread import TaskPool as ThreadPool

        return type(name, (ThreadPool,), {"__module__": __name__})
    raise AttributeError(name)


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = Celery("pools", set_as_current=current)
    app.conf.update(DEFAULTS | json.loads(environ["POISON_SETTINGS"]))
    app.conf.update(broker_url=environ["BROKER_URL"], result_backend=environ["RESULT_BACKEND"])

    async def waits(n: int) -> int:
        return n

    def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def counts(n: int) -> int:
        return n

    for run in (waits, dies, counts):
        task = app.task(run, name=f"pools.{run.__name__}", shared=False)
        if "PLAIN" not in environ:
            guarded(task)
    return app


app = build(os.environ, current=True) if "BROKER_URL" in os.environ else None
