"""Answers that a :class:`celery_poison.ledger.writer.Writer` waits for.

They are not read by the connection's own parser: its time-outs are those of the socket, and others send
by that socket meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any

import redis


class Answers:
    """What one connection still has to answer; for one reader at a time.

    Args:
        wait: waits some seconds until the socket is readable, and tells whether it is.
        sending: is held while something is sent: an encrypted socket must not be read meanwhile.

    Attributes:
        owed: how many answers. They stay owed when they do not come in time.
    """

    def __init__(self, sock: Any, wait: Callable[[float], object], sending: Lock) -> None:
        self._sock = sock
        self._wait = wait
        self._sending = sending
        self._text = b""
        self.owed = 0

    def take(self, deadline: float) -> list[bytes]:
        """Return all that are owed; of an array only its first element.

        Raises:
            redis.TimeoutError: they are not complete before ``deadline`` (monotonic seconds).
            redis.ConnectionError, OSError: they never will be.
        """
        while (found := parse(self._text, self.owed)) is None:
            left = deadline - time.monotonic()
            if not self._is_decrypted() and (left <= 0 or not self._wait(left)):
                raise redis.TimeoutError("no answer in time")
            self._receive()
        self._text, self.owed = b"", 0
        return found

    def _is_decrypted(self) -> bool:
        pending = getattr(self._sock, "pending", None)
        return pending is not None and pending() > 0

    def _receive(self) -> None:
        try:
            with self._sending:
                part = self._sock.recv(4096)
        except TimeoutError:  # only the beginning of an encrypted record has arrived
            return
        if not part:
            raise redis.ConnectionError("connection closed by server")
        self._text += part


def parse(text: bytes, count: int) -> list[bytes] | None:
    """Take ``count`` answers apart: single lines, or arrays of numbers; None while they are incomplete."""
    lines = iter(text.split(b"\r\n")[:-1])
    found = []
    for _ in range(count):
        line = next(lines, None)
        if line is not None and line.startswith(b"*"):
            elements = [next(lines, None) for _ in range(int(line[1:]))]
            line = None if None in elements else elements[0]
        if line is None:
            return None
        found.append(line)
    return found
