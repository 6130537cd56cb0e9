"""The poisons: what each does to whoever runs it, and what the quarantine should say about it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from celery import signals

#: Longer than anybody waits: such a task ends only by being killed.
FOREVER = 600

_main_pid = 0


@signals.worker_init.connect
def _remember_main_process(**_: Any) -> None:
    global _main_pid
    _main_pid = os.getpid()


def _sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dump in anybody's directory
    ctypes.string_at(0)


def _os_exit() -> None:
    os._exit(7)


def _memory_error() -> None:
    raise MemoryError("this page does not fit")


def _sys_exit() -> None:
    sys.exit(3)


def _hang() -> None:
    time.sleep(FOREVER)


def _kill_worker() -> None:
    os.kill(_main_pid, signal.SIGKILL)
    time.sleep(FOREVER)  # we outlive it for a moment, and must not return in it


def _kill_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


class Poison(NamedTuple):
    """One way of dying.

    Attributes:
        name: the task is ``demo.<name>``.
        what: for people.
        causes: what quarantine may give as the cause.
        kill: does it.
    """

    name: str
    what: str
    causes: frozenset[str]
    kill: Callable[[], None]


POISONS = (
    Poison("sigkill", "is killed, as by the OOM killer", frozenset({"signal:9"}), _sigkill),
    Poison("segfault", "crashes in a C library", frozenset({"signal:11"}), _segfault),
    Poison("os_exit", "calls os._exit(7)", frozenset({"exit:7"}), _os_exit),
    Poison("memory_error", "raises MemoryError", frozenset({"memory_error"}), _memory_error),
    Poison("sys_exit", "calls sys.exit(3)", frozenset({"system_exit", "exit:3"}), _sys_exit),
    Poison("hang", "never ends, is put back at its time limit", frozenset({"time_limit"}), _hang),
    Poison("kill_worker", "kills the worker's main process", frozenset({"signal:9"}), _kill_worker),
    Poison("kill_group", "kills the whole worker at once", frozenset({"signal:9"}), _kill_group),
    # Its arguments kill, in the main process, before any task has begun: see ``tasks``.
    Poison("bomb", "kills whoever deserialises it", frozenset({"receive"}), _sigkill),
)

BOMB = POISONS[-1]
HANG = POISONS[5]
