"""What private servers, workers and programs are made of: waited for, on free ports, stopped in order."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

T = TypeVar("T")

#: Seconds to wait for what must come, before giving up: enough for a machine that has much else to do.
PATIENCE = 120.0


class WaitTimeout(AssertionError):
    """What was waited for did not happen. An AssertionError, so that a test fails rather than errs."""


def wait_until(
    predicate: Callable[[], T],
    timeout: float = PATIENCE,
    what: str | Callable[[], str] = "",
    interval: float = 0.02,
) -> T:
    """Call `predicate` until it returns something true, and return that.

    `what` says in the error what was waited for; give a function where the sentence should tell how
    things stand at the end. Raises WaitTimeout after `timeout` seconds. The pauses grow from
    `interval` to ten times that, so that a long wait does not keep a processor busy.
    """
    deadline = time.monotonic() + timeout
    pause = interval
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise WaitTimeout(f"not within {timeout:g} s: {_told(what, predicate)} (last seen: {value!r})")
        time.sleep(pause)
        pause = min(pause * 1.3, interval * 10)


def _told(what: str | Callable[[], str], predicate: Callable[[], object]) -> str:
    if callable(what):
        return what()
    return what or getattr(predicate, "__qualname__", repr(predicate))


def free_ports(count: int = 1) -> list[int]:
    """`count` different free TCP ports of the loopback address.

    All are held open until the last is found, so that they differ. Somebody else can still take one
    before the server does: whoever starts a server checks that the one that answers is its own.
    """
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


class Running:
    """Starts on entering a ``with`` block, and is stopped on leaving it, whatever happens."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Interrupted(Exception):
    """Somebody asked the program to stop; ``exit_status`` is what a shell would tell."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interruptions:
    """While entered, Ctrl-C, SIGTERM and SIGHUP are noted, and looked at between two steps.

    An exception thrown into the middle of starting a process would leave that process to nobody.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._number = 0
        self._former: dict[int, Any] = {}

    def pause(self, seconds: float = 0.0) -> None:
        """Sleep; then raise Interrupted if somebody asked to stop."""
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
