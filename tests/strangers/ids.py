"""The guarded service of these tests: `celery -A tests.strangers.ids worker`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu import Queue
from kombu.common import Broadcast

from celery_poison import guarded
from celery_poison.testing import Worker
from tests.apps.factory import build_app
from tests.apps.harness import ROOT, Fleet
from tests.apps.marks import marks
from tests.outage.dying import die_where_told


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = build_app(environ, current=current)
    _register_work(app)
    _register_others(app)
    if os.environ.get("LISTENS"):
        app.conf.task_queues = (Queue("celery"), Broadcast("everybody"))
    return app


def _register_work(app: Celery) -> None:
    @guarded
    @app.task(bind=True, shared=False, name="fleet.work")
    def work(self: Any, n: int, seconds: float = 0.0, gate: bool = False) -> Any:
        here = marks(os.environ["MARKS_URL"])
        here.leave("work", self.request.id, "start", n)
        time.sleep(seconds)
        if gate:
            here.wait_at_gate()
        here.leave("work", self.request.id, "end", n)
        return n

    @app.task(bind=True, shared=False, name="fleet.parent")
    def parent(self: Any, how: str, queue: str) -> None:
        """Have a task that is unknown here run with the headers of this one."""
        for n in (0, 1):
            app.send_task(how, (n,), queue=queue, headers=self.request.headers)


def _register_others(app: Celery) -> None:
    @guarded
    @app.task(bind=True, shared=False, name="fleet.hears")
    def hears(self: Any, how: str) -> None:
        """Leave a mark of whether it was told that it was delivered before."""
        marks(os.environ["MARKS_URL"]).leave("told", self.request.id, how, self.request.poison.redelivered)
        if self.request.poison.deliveries > 1 or self.request.retries:
            return
        if how == "delivered again":
            self.rollback()
        elif how == "released":
            self.quarantine("asks for it")
        else:
            self.retry(countdown=0)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.refresh")
    def refresh(self: Any, gate: bool = False) -> None:
        """What is broadcast; it publishes one message."""
        here = marks(os.environ["MARKS_URL"])
        here.leave("refresh", self.request.id, "start", gate)
        if gate:
            here.wait_at_gate()
        with self.publishing():
            app.send_task("fleet.work", (7,))


if "MARKS_URL" in os.environ:
    die_where_told()
    app = build(os.environ, current=True)


@dataclass
class Ids(Fleet):
    """A fleet, and a plain service beside it."""

    module = "tests.strangers.ids"
    build = staticmethod(build)

    def publish_plainly(self, *calls: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
        """Publish from a process that does not have the plugin: name, arguments and options of each."""
        command = [sys.executable, "-m", "tests.strangers.plain", json.dumps(calls)]
        subprocess.run(command, env={**os.environ, **self.environ()}, cwd=ROOT, check=True, timeout=60)

    def plain_worker(self) -> Worker:
        path = self.directory / "plain.log"
        options: dict[str, Any] = {"queues": ["plain"], "env": self.environ(), "cwd": ROOT, "log_path": path}
        return Worker("tests.strangers.plain", name="plain", concurrency=1, **options)

    def ended(self) -> dict[Any, int]:
        return dict(self.marks.count("work", "end"))

    def begun(self) -> dict[Any, int]:
        return dict(self.marks.count("work", "start"))

    def evidence(self) -> str:
        told = [{name: word for name, word in entry.items() if word} for entry in self.events()]
        return super().evidence() + "\n".join(map(str, [*told, *self.marks.all()]))

    def nothing_runs(self) -> bool:
        return not [*self.quarantine.queries.running()]
