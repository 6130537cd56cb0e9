"""The app under load: one task that does its work in steps, and one for each way of killing.

A worker's environment names everything: ``POISON_CHAOS_SETTINGS`` is a JSON object of :class:`Setup`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from celery import Celery, Task, current_task, signals

from celery_poison import guarded
from celery_poison.chaos.runs import write_line

_main_pid = os.getpid()


@signals.worker_init.connect
def _remember_main_process(**_: Any) -> None:
    """Pool processes inherit it by the fork; with threads, gevent and solo it is the process itself."""
    global _main_pid
    _main_pid = os.getpid()


def sigkill() -> None:
    """As an operator does, or the kernel."""
    os.kill(os.getpid(), signal.SIGKILL)


def segv() -> None:
    """As a broken extension module does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def exit_at_once() -> None:
    """As a library does that thinks it owns the process."""
    os._exit(7)


def memory_error() -> None:
    """Want more memory than the address space holds."""
    bytearray(1 << 62)


def hang() -> None:
    """Run into the hard time limit."""
    time.sleep(600)


def kill_group() -> None:
    """Take the whole process group along."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def kill_main() -> None:
    """Kill the worker's main process by its id, and wait for what comes of it."""
    os.kill(_main_pid, signal.SIGKILL)
    time.sleep(600)


class Deadly:
    """An argument that kills whoever unpickles it: the main process, before any task has begun."""

    def __init__(self, id: str) -> None:
        self.id = id

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return _die, (self.id,)


def _die(id: str) -> None:
    write_line("kill", id, uuid4().hex[:12])
    os.kill(os.getpid(), signal.SIGKILL)


KILLS: dict[str, Callable[[], None]] = {
    kill.__name__: kill for kill in (sigkill, segv, exit_at_once, memory_error, hang, kill_group, kill_main)
}
#: Named like those, and deadly earlier.
UNPICKLED = "unpickled"
POISONS = (*KILLS, UNPICKLED)
TASK_OPTIONS: dict[str, dict[str, Any]] = {
    "hang": {"time_limit": 1, "acks_on_timeout": False, "acks_on_failure_or_timeout": False}
}
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
        options = TASK_OPTIONS.get(name, {})
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
