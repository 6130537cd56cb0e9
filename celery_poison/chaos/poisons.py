"""The ways in which a message kills whoever runs it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from celery import signals

from celery_poison.chaos import tasklog

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
    tasklog.write("kill", id, uuid4().hex[:12])
    os.kill(os.getpid(), signal.SIGKILL)


KILLS: dict[str, Callable[[], None]] = {
    kill.__name__: kill for kill in (sigkill, segv, exit_at_once, memory_error, hang, kill_group, kill_main)
}
#: Named like those, and deadly earlier.
UNPICKLED = "unpickled"
NAMES = (*KILLS, UNPICKLED)
TASK_OPTIONS: dict[str, dict[str, Any]] = {
    "hang": {"time_limit": 1, "acks_on_timeout": False, "acks_on_failure_or_timeout": False}
}
#: Who has no hard time limits runs this one for ten minutes.
ONLY_PREFORK = ("hang",)
