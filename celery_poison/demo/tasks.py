"""The demo's tasks: one that does its work, and one for each poison."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, Task, current_task, signals
from kombu import serialization

from celery_poison import guarded
from celery_poison.demo.poisons import BOMB, HANG, POISONS, Poison
from celery_poison.demo.tally import Tally
from celery_poison.task import FIRST

HEALTHY = "demo.healthy"
#: In this format a message goes off while it is read, as a malicious or broken pickle does.
SERIALIZER = "demo-bomb"

#: How long a healthy task takes, in seconds.
WORK = 0.03
#: Long enough for the tasks beside a poison to have begun when it kills.
HESITATION = 0.05
HARD_LIMIT = 1

_TASK_OPTIONS: dict[str, dict[str, Any]] = {
    # The second name is the one that Celery knew before 5.7.
    HANG.name: {"time_limit": HARD_LIMIT, "acks_on_timeout": False, "acks_on_failure_or_timeout": False}
}


def task_name(poison: Poison) -> str:
    return f"demo.{poison.name}"


def expected(n: int) -> int:
    """What the healthy task number ``n`` returns."""
    return n * n


def register(app: Celery, tally: Tally, *, plain: bool) -> None:
    """Give the app its tasks, guarded unless ``plain``.

    Not shared: Celery would give a shared task to every other app of this process.
    """
    guard = _unguarded if plain else guarded
    serialization.register(SERIALIZER, json.dumps, _reader(tally), f"application/x-{SERIALIZER}", "utf-8")
    signals.worker_process_init.connect(
        lambda **_: tally.pool_process_born(os.getppid()), weak=False, dispatch_uid=SERIALIZER
    )

    @guard
    @app.task(shared=False, name=HEALTHY)
    def healthy(n: int) -> int:
        tally.started(n)
        time.sleep(WORK)
        tally.finished(n)
        return expected(n)

    for poison in POISONS:
        _register_poison(app, tally, poison, guard)


def _register_poison(app: Celery, tally: Tally, poison: Poison, guard: Callable[..., Any]) -> None:
    def harmful() -> str:
        if tally.is_repaired(poison.name):
            return "repaired"
        time.sleep(HESITATION)
        if not getattr(current_task.request, "poison", FIRST).on_trial:
            tally.about_to_kill(poison.name)  # on trial it harms nobody, and the ledger counts its death
        poison.kill()
        return "survived"

    task: Task = app.task(shared=False, name=task_name(poison), **_TASK_OPTIONS.get(poison.name, {}))(harmful)
    guard(task)


def _reader(tally: Tally) -> Callable[[str], Any]:
    def read(body: str) -> Any:
        if not tally.is_repaired(BOMB.name):
            tally.about_to_kill(BOMB.name)
            BOMB.kill()
        return json.loads(body)

    return read


def _unguarded(task: Any = None, **_: Any) -> Any:
    """Stands where ``guarded`` would."""
    return task if task is not None else lambda wrapped: wrapped
