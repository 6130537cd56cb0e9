"""The app of a fleet whose tasks write down for how long they have run, and then die, or do not."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import redis
from celery import Celery, Task

from celery_poison import guarded
from tests.apps.factory import build_app
from tests.apps.harness import Fleet

NOTES = "toil"
#: Seconds between two notes.
STEP = 0.02


def works(self: Task, seconds: float, *ways: str) -> int:
    """Work so long, and end each run in its way; return the number of the run."""
    with redis.Redis.from_url(os.environ["MARKS_URL"]) as notes:
        run, began = notes.incr(f"{NOTES}:{self.request.id}"), time.monotonic()
        while True:
            worked = time.monotonic() - began
            notes.rpush(NOTES, json.dumps((self.request.id, run, worked)))
            if worked >= seconds:
                break
            time.sleep(STEP)
        match ways[run - 1] if run <= len(ways) else "":
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "memory":
                raise MemoryError
            case "hangs":
                while True:
                    notes.rpush(NOTES, json.dumps((self.request.id, run, time.monotonic() - began)))
                    time.sleep(STEP)
    return run


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = build_app(environ, current=current)
    for name in ("convert", "charge"):
        guarded(app.task(works, name=f"toil.{name}", bind=True, shared=False))
    return app


class Toil(Fleet):
    """Its tasks know how long they ran."""

    module = "tests.extensions.toil"
    build = staticmethod(build)

    def begin(self, task: str, seconds: float, *ways: str, **options: Any) -> Any:
        return self.app.tasks[f"toil.{task}"].apply_async((seconds, *ways), **options)

    def worked(self) -> dict[tuple[str, int], float]:
        """How long each run had worked at its last note, in seconds, by task id and number of the run."""
        found: dict[tuple[str, int], float] = defaultdict(float)
        with redis.Redis.from_url(self.marks_url, decode_responses=True) as notes:
            for id, run, seconds in map(json.loads, notes.lrange(NOTES, 0, -1)):
                found[id, run] = seconds
        return dict(found)


if "BROKER_URL" in os.environ:
    app = build(os.environ, current=True)
