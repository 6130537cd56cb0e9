"""What the watcher of a cell tells the ledger if its worker dies before it can convict the suspect itself.

The worker waits a moment before it believes that a suspect has killed its cell: who kills both may reach the
cell first. A worker that dies of something else in that moment must not cost a further death. Its watcher has
seen all that there is to see; it lives through the moment too, and sends what was written down here
beforehand, on a connection that was opened beforehand. It knows neither Redis nor any secret: where the
ledger speaks TLS, what it sends was encrypted beforehand, too.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from celery_poison.ledger.connection import REDIS_ERRORS
from celery_poison.ledger.wire import HANDSHAKE, waiter

#: Seconds without another attempt after the ledger could not be reached: it may have cost HANDSHAKE.
PAUSE = 5.0


class Depositions:
    """Writes down one command after the other, and opens the connection for it.

    Args:
        client: of the ledger.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool: Any = client.connection_pool
        self._line: socket.socket | None = None
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
        sock = self._connected()
        line = os.dup(sock.fileno())
        opened.callback(os.close, line)
        memory = os.memfd_create("poison-deposition")
        opened.callback(os.close, memory)
        if isinstance(sock, ssl.SSLSocket):
            self._line = None  # its next record can be sent once, and by nobody else
            with sock:
                # That is written into the memory instead, and sent from there when it is time.
                os.dup2(memory, sock.fileno())
                sock.sendall(command)
        else:
            os.write(memory, command)
        return memory, line

    def _connected(self) -> socket.socket:
        # Nothing is owed to it: it is readable when the server has closed it.
        if self._line is None or waiter(self._line)(0):
            if self._line is not None:
                self._line.close()
            self._line = self._connect()
        return self._line

    def _connect(self) -> socket.socket:
        options = {**self._pool.connection_kwargs, "socket_timeout": HANDSHAKE}
        connection = self._pool.connection_class(**options)
        connection.connect()
        # Its answer comes behind all that a TLS server says unasked: nothing but the answer to the
        # command is left to come.
        connection.send_command("PING")
        connection.read_response()
        # Who disconnects it would end it for the watcher, too.
        sock: socket.socket = connection._sock
        connection._sock = None
        return sock
