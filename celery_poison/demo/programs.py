"""What a program needs that starts a fleet of its own: it can be stopped at any time, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Self

from celery_poison.basics import procfs

_PACKAGE = str(Path(__file__).parents[2])


class Interrupted(Exception):
    """A signal asked the program to stop; ``exit_status`` is the one of a shell."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interruptions:
    """While entered, Ctrl-C, SIGTERM and SIGHUP are noted, and looked at between two steps.

    An exception in the middle of starting a process would leave that process running.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._number = 0
        self._former: dict[int, Any] = {}

    def pause(self, seconds: float = 0.0) -> None:
        """Sleep; then raise Interrupted if such a signal has come."""
        # Not ``stopping.wait``: a signal that comes while it takes its lock would wait for itself.
        time.sleep(seconds)
        if self._number:
            raise Interrupted(self._number)

    def _note(self, number: int, _: object) -> None:
        self._number = self._number or number
        self.stopping.set()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)


def private_environment(*paths: object) -> dict[str, str]:
    """Return the variables that workers of a private fleet need beside our own environment.

    They import this package wherever they run, after ``paths``, and no settings that were made for other
    workers reach them.
    """
    found = filter(None, (*map(str, paths), _PACKAGE, os.environ.get("PYTHONPATH")))
    foreign = {name: "" for name in os.environ if name.startswith("CELERY_")}
    return {**foreign, "PYTHONPATH": os.pathsep.join(found)}


def end_marked(variable: str, value: str) -> None:
    """Kill what carries a mark in its environment: what left its worker's process group and outlived it."""
    for pid in procfs.carrying(variable, value):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
