"""What the watcher of a cell tells the ledger if its worker dies before it can convict the suspect itself.

The worker waits a moment before it believes that a suspect has killed its cell: who kills both may reach the
cell first. A worker that dies of something else in that moment must not cost a further death. Its watcher has
seen all that there is to see; it lives through the moment too, and sends what was written down here
beforehand, on a connection that was opened beforehand. It knows neither Redis nor any secret: where the
ledger speaks TLS, what it sends was encrypted beforehand, too.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from celery_poison.ledger.connection import REDIS_ERRORS
from celery_poison.ledger.wire import HANDSHAKE

#: Seconds without another attempt after the ledger could not be reached: it may have cost HANDSHAKE.
PAUSE = 5.0


class Depositions:
    """Writes down one command after the other, each for a connection of its own.

    Args:
        client: of the ledger.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool: Any = client.connection_pool
        self._retry_at = 0.0

    @contextmanager
    def written(self, command: bytes) -> Iterator[tuple[int, ...]]:
        """Descriptors for a watcher: memory with the bytes to be sent, and the connection to send them on.

        There are none while the ledger is away. They are closed at the end: the watcher has its own by then.
        """
        with ExitStack() as opened:
            fds: tuple[int, ...] = ()
            if time.monotonic() >= self._retry_at:
                try:
                    fds = self._write(command, opened)
                except REDIS_ERRORS:
                    self._retry_at = time.monotonic() + PAUSE
            yield fds

    def _write(self, command: bytes, opened: ExitStack) -> tuple[int, int]:
        options = {**self._pool.connection_kwargs, "socket_timeout": HANDSHAKE}
        connection = self._pool.connection_class(**options)
        connection.connect()
        # Its answer comes behind all that a TLS server says unasked: nothing but the answer to the
        # command is left to come.
        connection.send_command("PING")
        connection.read_response()
        sock, connection._sock = connection._sock, None  # who disconnects it would end it for the watcher too
        with sock:
            line = os.dup(sock.fileno())
            opened.callback(os.close, line)
            memory = os.memfd_create("poison-deposition")
            opened.callback(os.close, memory)
            if isinstance(sock, ssl.SSLSocket):
                # Its next record is written into the memory instead, and sent from there when it is time.
                os.dup2(memory, sock.fileno())
                sock.sendall(command)
            else:
                os.write(memory, command)
        return memory, line
