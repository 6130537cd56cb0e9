"""The app under load: one task that does its work in steps, and one for each way of killing.

A worker's environment names everything: ``POISON_CHAOS_SETTINGS`` is a JSON object of :class:`Setup`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from celery import Celery, Task, current_task, signals

from celery_poison import guarded
from celery_poison.chaos.runs import write_line
from celery_poison.testing import deaths


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
#: Seconds between two signs of life of a run.
STEP = 0.1
#: Long enough for the tasks beside a poison to have begun when it kills.
HESITATION = 0.05


@dataclass(frozen=True, slots=True)
class Setup:
    """What the app is built of; ``settings`` are Celery settings."""

    broker: str
    ledger: str
    plain: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def as_environment(self) -> dict[str, str]:
        return {SETUP: json.dumps(asdict(self))}


def build(setup: Setup, *, current: bool = False) -> Celery:
    """Return the app; only a worker makes it its process's current one."""
    app = Celery("celery_poison_chaos", broker=setup.broker, set_as_current=current)
    app.conf.update(
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # One poison is deadly while it is read.
        accept_content=["json", "pickle"],
    )
    if setup.plain:
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    else:
        app.conf.poison_redis_url = setup.ledger
    app.conf.update(setup.settings)
    _register(app, (lambda task: task) if setup.plain else guarded)
    return app


def _register(app: Celery, guard: Callable[[Any], Any]) -> None:
    # Not shared: Celery would give a shared task to every app that is made later in this process.
    guard(app.task(bind=True, shared=False, name=WORK)(_work))
    for name, kill in KILLS.items():
        options = deaths.LATE if name == "hang" else {}
        guard(app.task(bind=True, shared=False, name=f"chaos.{name}", **options)(_deadly(name, kill)))
    guard(app.task(bind=True, shared=False, name=f"chaos.{UNPICKLED}")(_unpickled))


def _work(self: Task, seconds: float) -> None:
    run, on_trial = uuid4().hex[:12], _is_on_trial()
    write_line("begin", self.request.id, run, on_trial=on_trial)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(STEP, left))
        write_line("step", self.request.id, run, on_trial=on_trial)
    write_line("end", self.request.id, run, on_trial=on_trial)


def _deadly(name: str, kill: Callable[[], None]) -> Callable[[Task], None]:
    def poison(self: Task) -> None:
        run, on_trial = uuid4().hex[:12], _is_on_trial()
        write_line("begin", self.request.id, run, on_trial=on_trial)
        time.sleep(HESITATION)
        write_line("kill", self.request.id, run, on_trial=on_trial)
        kill()

    poison.__name__ = name
    return poison


def _unpickled(self: Task, argument: object) -> None:
    """Never runs: its argument is deadly to whoever unpickles it."""


def _is_on_trial() -> bool:
    return bool(getattr(getattr(current_task.request, "poison", None), "on_trial", False))


@signals.task_received.connect
def _received(request: Any, **_: Any) -> None:
    write_line("received", request.id, "")


if SETUP in os.environ:
    app = build(Setup(**json.loads(os.environ[SETUP])), current=True)
