"""The app under load: one task that does its work in steps, and one for each way of killing.

A worker's environment holds its settings, ``POISON_CHAOS_SETTINGS``: a JSON object.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from celery import Celery, Task, current_task
from celery.worker.control import control_command

from celery_poison import guarded
from celery_poison.basics.forking import unpatched
from celery_poison.testing import deaths
from tests.chaos.runs import write_line


class Deadly:
    """An argument that kills whoever unpickles it: the main process, before any task has begun."""

    def __init__(self, id: str) -> None:
        self.id = id

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _die, (self.id,)


def _die(id: str) -> None:
    write_line("kill", id, uuid4().hex[:12])
    deaths.sigkill()


KILLS: dict[str, Callable[[], None]] = {
    "sigkill": deaths.sigkill,
    "segv": deaths.segfault,
    "exit_at_once": deaths.exit_at_once,
    "memory_error": deaths.memory_error,
    "hang": deaths.hang,
    "kill_group": deaths.kill_group,
    "kill_main": deaths.kill_main,
}
#: Named like those, and deadly earlier.
UNPICKLED = "unpickled"
POISONS = (*KILLS, UNPICKLED)
#: Who has no hard time limits runs this one for ten minutes.
ONLY_PREFORK = ("hang",)
SETUP = "POISON_CHAOS_SETTINGS"
WORK = "chaos.work"


def build(settings: Mapping[str, Any], *, current: bool = False) -> Celery:
    """Return the app; it has the plugin if they name a ledger. Only a worker makes it the current one."""
    app = Celery("celery_poison_chaos", set_as_current=current)
    app.conf.update(
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # One poison is deadly while it is read.
        accept_content=["json", "pickle"],
    )
    # Else Celery 5.7 ends a worker whose predecessor's connection the broker still believes in.
    app.conf.control_queue_exclusive = False
    app.conf.update(settings)
    guard: Callable[[Any], Any] = guarded if "poison_redis_url" in settings else lambda task: task
    tasks: dict[str, Callable[..., None]] = {WORK: _work, f"chaos.{UNPICKLED}": _unpickled}
    tasks |= {f"chaos.{name}": _deadly(kill) for name, kill in KILLS.items()}
    for name, task in tasks.items():
        options = deaths.LATE if name == "chaos.hang" else {}
        # Not shared: Celery would give a shared task to every app that is made later in this process.
        guard(app.task(bind=True, shared=False, name=name, **options)(task))
    return app


def _work(self: Task, seconds: float) -> None:
    run, until = uuid4().hex[:12], time.monotonic() + seconds
    _write(self, "begin", run)
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(0.1, left))
        _write(self, "step", run)
    _write(self, "end", run)


def _deadly(kill: Callable[[], None]) -> Callable[[Task], None]:
    def poison(self: Task) -> None:
        run = uuid4().hex[:12]
        _write(self, "begin", run)
        time.sleep(0.05)  # in which the tasks beside it begin
        _write(self, "kill", run)
        kill()

    return poison


def _unpickled(self: Task, argument: object) -> None:
    """Never runs: its argument is deadly to whoever unpickles it."""


@control_command()
def wedge(state: Any, seconds: float) -> None:
    """Keep the event loop from going round; with greenlets all of them."""
    unpatched("time", "sleep")(seconds)


def _write(task: Task, event: str, run: str) -> None:
    on_trial = bool(getattr(getattr(current_task.request, "poison", None), "on_trial", False))
    write_line(event, task.request.id, run, on_trial=on_trial)


if SETUP in os.environ:
    app = build(json.loads(os.environ[SETUP]), current=True)
