"""The worker's event loop, whose thread alone may touch the broker: from any thread back to it."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery.utils.log import get_logger

logger = get_logger(__name__)


class StartAfresh(ConnectionResetError):
    """Celery takes this for a lost connection: it drops what had not begun, and connects anew."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"celery_poison: this worker begins afresh: {reason}")


class EventLoop:
    """Runs callables on the event loop of the current consumer, in the order they were sent.

    Attributes:
        consumer: of the present broker connection; None before the first.
        epoch: number of that connection; changes when it is lost, too. What came by an earlier one is void.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._asked = self._has_run_until = 0.0
        self.consumer: Any = None
        self.epoch = 0

    def start_afresh(self, reason: str) -> None:
        """Leave the broker and come back (on the event loop)."""
        if self.consumer.hub is not None:
            raise StartAfresh(reason)
        if self.consumer.connection is not None:  # else it is about to come back already
            self.consumer.connection.break_off(StartAfresh(reason))

    def register(self, hub: Any) -> None:
        """Wake up ``hub`` for every call; needed anew each time its loop starts."""
        hub.add_reader(self._reader, self.drain)
        self._wake()

    def call_in_loop(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the event loop, soon."""
        self._calls.append(function)
        if self.consumer is None or self.consumer.hub is not None:
            self._wake()
        elif self.consumer.pool.is_green:
            self.drain()  # all threads are greenlets of one thread
        else:
            self.consumer.call_soon(self.drain)

    def has_run_until(self) -> float:
        """Return a time, by the monotonic clock, until which the loop has run what it was sent.

        It may hang: where the broker goes away while Celery replies to a remote command, kombu tries to
        send the reply until the broker is back, and nobody notices before that the connection is gone
        (celery #6911).
        """
        if self._has_run_until >= self._asked:
            self._asked = time.monotonic()
            self.call_in_loop(partial(self._answer, self._asked))
        return self._has_run_until

    def _answer(self, asked: float) -> None:
        self._has_run_until = asked

    def deferred(self, function: Callable[..., object]) -> Callable[..., None]:
        """Return a function that runs ``function`` on the event loop, soon; from any thread."""
        return lambda *args: self.call_in_loop(partial(function, *args))

    def _wake(self) -> None:
        with suppress(OSError):  # the pipe is full: the loop is being woken up already
            self._writer.send(b"!")

    def drain(self) -> None:
        """Run everything that was sent; an error must not reach the event loop, which would end."""
        with suppress(OSError):
            while self._reader.recv(4096):
                pass
        while self._calls:
            function = self._calls.popleft()
            try:
                function()
            except StartAfresh:
                raise  # the one error that is meant for the event loop
            except Exception:
                logger.exception("celery_poison: a decision could not be carried out")
