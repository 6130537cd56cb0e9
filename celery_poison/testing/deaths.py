"""Ways in which a task kills the process that runs it. They are for private workers, which they do kill.

::

    @guarded
    @app.task
    def convert(page):
        deaths.segfault()
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from typing import Any

from celery import signals

#: Seconds: longer than any test waits.
FOREVER = 600
#: Options of a task that is to be put back at its time limit, as :func:`hang` runs into it. The last is the
#: name that Celery knew before 5.7.
LATE: dict[str, Any] = {"time_limit": 1, "acks_on_timeout": False, "acks_on_failure_or_timeout": False}

_main_pid = os.getpid()


@signals.worker_init.connect
def _remember_main_process(**_: Any) -> None:
    """Pool processes inherit it by the fork; with threads, gevent and solo it is the process itself."""
    global _main_pid
    _main_pid = os.getpid()


def sigkill() -> None:
    """As an operator does, or the kernel for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    """As a broken extension module does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dump in a user's directory
    ctypes.string_at(0)


def exit_at_once() -> None:
    """As a library does that thinks it owns the process."""
    os._exit(7)


def memory_error() -> None:
    """Want more memory than the address space holds."""
    bytearray(1 << 62)


def hang() -> None:
    """Run into the hard time limit."""
    time.sleep(FOREVER)


def kill_group() -> None:
    """Take the whole process group along."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def kill_main() -> None:
    """Kill the worker's main process, or the watcher that stands in for it; wait for what comes of it."""
    os.kill(os.getpid() if os.getpid() == _main_pid else os.getppid(), signal.SIGKILL)
    time.sleep(FOREVER)
