"""Healthy tasks, and one poison for each way of dying."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, Task, signals

from celery_poison import guarded
from tests.apps.marks import Marks, marks

#: Long enough for the tasks beside a poison to have begun when it kills.
HESITATION = 0.05

_main_pid = os.getpid()


@signals.worker_init.connect
def _remember_main_process(**_: Any) -> None:
    """Pool children and cells inherit it by the fork; in threads and solo it is the process itself."""
    global _main_pid
    _main_pid = os.getpid()


def kill_child() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    _no_core_dump()
    ctypes.string_at(0)


def abort() -> None:
    _no_core_dump()
    os.abort()


def os_exit() -> None:
    os._exit(7)


def memory_error() -> None:
    raise MemoryError("this page does not fit")


def system_exit() -> None:
    sys.exit(3)


def hard_limit() -> None:
    time.sleep(600)


def kill_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def kill_main() -> None:
    """Kill the main process; in a cell its watcher, which stands in for it."""
    os.kill(os.getpid() if os.getpid() == _main_pid else os.getppid(), signal.SIGKILL)
    time.sleep(600)  # under prefork we outlive it for a moment, and must not return in it


def _no_core_dump() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class KillsItsReader:
    """An argument that kills whoever unpickles it: the main process, before any task has begun."""

    def __reduce__(self) -> tuple[Callable[[], str], tuple[()]]:
        return (_die_unless_repaired, ())


def _die_unless_repaired() -> str:
    if not _here().repaired:
        os.kill(os.getpid(), signal.SIGKILL)
    return "unpickled"


#: How each kills; further Celery options for its task in the other.
POISONS: dict[str, Callable[[], None]] = {
    kill.__name__: kill
    for kill in (
        kill_child,
        segfault,
        abort,
        os_exit,
        memory_error,
        system_exit,
        hard_limit,
        kill_group,
        kill_main,
    )
}
TASK_OPTIONS: dict[str, dict[str, Any]] = {
    "hard_limit": {"time_limit": 1, "acks_on_timeout": False, "acks_on_failure_or_timeout": False}
}


def register(app: Celery) -> None:
    """Give the app all of them, as `fleet.<name>`.

    Not shared: Celery would give a shared task to every app that is made later in this process.
    """
    _register_healthy(app)
    for name, kill in POISONS.items():
        _register_poison(app, name, kill)


def _register_healthy(app: Celery) -> None:
    @guarded
    @app.task(bind=True, shared=False, name="fleet.healthy")
    def healthy(self: Task, n: int, seconds: float = 0.02) -> int:
        _here().leave("healthy", self.request.id, "start", n)
        time.sleep(seconds)
        _here().leave("healthy", self.request.id, "end", n)
        return n

    @guarded
    @app.task(bind=True, shared=False, name="fleet.slow")
    def slow(self: Task, seconds: float) -> float:
        _here().leave("slow", self.request.id, "start", seconds)
        time.sleep(seconds)
        _here().leave("slow", self.request.id, "end", seconds)
        return seconds

    @guarded
    @app.task(bind=True, shared=False, name="fleet.busy")
    def busy(self: Task, n: int, seconds: float) -> None:
        _here().leave("busy", self.request.id, "start", n)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass  # no greenlet gets a turn
        _here().leave("busy", self.request.id, "end", n)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.gated")
    def gated(self: Task, n: int) -> None:
        _here().leave("gated", self.request.id, "start", n)
        _here().wait_at_gate()
        _here().leave("gated", self.request.id, "end", n)

    @guarded
    @app.task(bind=True, shared=False, name="fleet.unpickled")
    def unpickled(self: Task, argument: object) -> str:
        _here().leave("unpickled", self.request.id, "start")
        _here().leave("unpickled", self.request.id, "end")
        return str(argument)


def _register_poison(app: Celery, name: str, kill: Callable[[], None]) -> None:
    def poison(self: Task, n: int | None = None) -> str:
        _here().leave(name, self.request.id, "start", n)
        if not _here().repaired:
            time.sleep(HESITATION)
            kill()
        _here().leave(name, self.request.id, "end", n)
        return "repaired"

    poison.__name__ = name
    task = app.task(bind=True, shared=False, name=f"fleet.{name}", **TASK_OPTIONS.get(name, {}))
    guarded(task(poison))


def _here() -> Marks:
    return marks(os.environ["MARKS_URL"])
