"""The fleet's tasks, one that says where it ran, and ways to make a worker deaf and its event loop hang."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.worker.control import control_command

from celery_poison import guarded
from tests.apps.factory import build_app
from tests.apps.marks import marks


def build(environ: Mapping[str, str], *, current: bool = False) -> Celery:
    app = build_app(environ, current=current)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.where")
    def where(self: Any, n: int, seconds: float, again: float | None = None) -> str:
        """Run for so many seconds; ``again``: where it is not the first run."""
        here = marks(os.environ["MARKS_URL"])
        here.leave("where", self.request.id, "start", n)
        is_first = again is None or here.count("where", "start")[n] == 1
        time.sleep(seconds if is_first else again or 0)
        here.leave("where", self.request.id, "end", n)
        return str(self.request.hostname)

    return app


@control_command()
def go_deaf(state: Any) -> dict[str, str]:
    """Consume nothing any more, and believe to consume, as after kombu's failed reconnects."""
    state.consumer.task_consumer.cancel()
    return {"ok": "consumes nothing"}


@control_command()
def hang(state: Any, seconds: float) -> None:
    """Keep the event loop from going round, as the reply to a command does whose broker has gone."""
    marks(os.environ["MARKS_URL"]).leave("loop", "", "hangs")
    time.sleep(seconds)


@control_command()
def stand(state: Any) -> None:
    """Keep the event loop from going round until the gate is open."""
    marks(os.environ["MARKS_URL"]).leave("loop", "", "stands")
    marks(os.environ["MARKS_URL"]).wait_at_gate()
