"""The writes of the hot path, unanswered unless asked about: a socket told to send no replies.

Why no replies: a process killed while unread replies lie in its receive buffer closes its socket with
a reset, and Redis drops what it had not read yet. With CLIENT REPLY OFF there is nothing to read, and
what was handed to the kernel survives the sender. What Redis refuses is lost in silence here; the
worker's main process notices it when it settles the start, and counts it as unguarded.

With ``poison_durability="sync"`` starts are asked about, on the same connection: so they keep their
place among the notes of this process, and an end can never overtake its start.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any

import redis

from celery_poison.ledger.answers import Answers
from celery_poison.ledger.connection import REDIS_ERRORS, clear_errors

#: Seconds a write may block on a stalled Redis before the task goes on unguarded.
SEND_TIMEOUT = 0.5
#: Seconds before the next attempt to connect after a failure.
RETRY_PAUSE = 1.0


def command(*words: bytes) -> bytes:
    """Return one Redis command in its wire format."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


_REPLY_ON, _REPLY_OFF = (command(b"CLIENT", b"REPLY", word) for word in (b"ON", b"OFF"))
_GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class Wire:
    """Sends commands and waits for no answer unless asked to; one connection for each process.

    Thread-safe. Opens its connection at the first write, and again after a fork.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._connection: Any = None
        self._answers: Any = None
        self._poll: Any = None
        self._pid = 0
        #: Counts connections: another number may mean another server.
        self.connects = 0
        self._retry_at = 0.0
        self.failures = 0

    def send(self, commands: bytes) -> bool:
        """Hand ``commands`` to the kernel; False when the ledger is away (counted in ``failures``)."""
        if self._pid != os.getpid():
            self._adopt_process()
        with self._lock:
            try:
                self._ready()
                self._connection._sock.sendall(commands)
                return True
            except _Away:
                self.failures += 1
                return False
            except REDIS_ERRORS:
                self.failures += 1
                self._drop()
                return False

    def reach(self) -> int:
        """Connect unless there is a connection; return its number.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        if self._pid != os.getpid():
            self._adopt_process()
        with self._lock, clear_errors("connecting to the ledger"):
            self._ready()
            return self.connects

    def ask(self, commands: bytes, count: int, timeout: float) -> list[bytes]:
        """Send ``commands`` and wait for their ``count`` answers; of an array the first element is told.

        One asks at a time; what others send meanwhile goes out behind it, and they do not wait.

        Raises:
            LedgerUnavailable: Redis is away, silent for ``timeout`` seconds (the commands may still be
                carried out, in their place), or refuses one of them.
        """
        if self._pid != os.getpid():
            self._adopt_process()
        with self._asking, clear_errors("waiting for a write"):
            connection = None
            try:
                with self._lock:
                    self._ready()
                    connection, answers = self._connection, self._answers
                    connection._sock.sendall(_REPLY_ON + commands + _REPLY_OFF)
                    answers.owed += 1 + count
                told: list[bytes] = answers.take(time.monotonic() + timeout)[-count:]
                _raise_refusal(told)
                return told
            except redis.TimeoutError:
                raise  # a stalled Redis answers in the end: whoever asks next skips these answers
            except BaseException:  # a time limit too: half an answer may be lost
                with self._lock:
                    if connection is not None and self._connection is connection:
                        self._drop(pause=0.0)
                raise

    def _ready(self) -> None:
        if self._connection is None or self._is_closed():
            try:
                self._reconnect()
            except _Away:  # must not prolong the pause: a busy sender would never come back
                raise
            except BaseException:
                self._drop()
                raise

    def _is_closed(self) -> bool:
        # A readable socket that expects no replies has been closed by the server.
        found = self._poll.poll(0)
        return bool(found) and (not self._answers.owed or bool(found[0][1] & _GONE))

    def _adopt_process(self) -> None:
        # The parent's socket must not be shared, and its locks may have been held at the fork.
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._connection = None
        self._retry_at = 0.0  # the parent's pause is none of this process's business
        self._pid = os.getpid()

    def _reconnect(self) -> None:
        if self._connection is not None:
            self._drop(pause=0.0)
        if time.monotonic() < self._retry_at:
            raise _Away
        self._retry_at = time.monotonic() + RETRY_PAUSE
        connection = self._pool.connection_class(**self._pool.connection_kwargs)
        connection.connect()
        connection.send_command("CLIENT", "REPLY", "OFF")
        connection._sock.settimeout(SEND_TIMEOUT)
        self._connection, self._answers = connection, Answers(connection._sock)
        self._poll = select.poll()
        self._poll.register(connection._sock, select.POLLIN | _GONE)
        self.connects += 1

    def _drop(self, pause: float = RETRY_PAUSE) -> None:
        connection, self._connection = self._connection, None
        self._retry_at = time.monotonic() + pause
        if connection is not None:
            # A half-sent command must not be completed by the next one: the socket is done for.
            connection.disconnect()


class _Away(redis.ConnectionError):
    """The pause after a failed connection is not over yet."""

    def __init__(self) -> None:
        super().__init__("it was not a moment ago")


def _raise_refusal(answers: list[bytes]) -> None:
    for answer in answers:
        if answer.startswith(b"-"):
            raise redis.ResponseError(answer[1:].decode("utf-8", "replace"))


def probe(client: redis.Redis) -> None:
    """Raise ``LedgerUnavailable`` unless Redis answers."""
    with clear_errors("connecting to the ledger"):
        client.ping()
