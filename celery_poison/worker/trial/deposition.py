"""What the watcher of a cell tells the ledger if its worker dies before it can convict the suspect itself.

The worker waits a moment before it believes that a suspect has killed its cell: who kills both may reach the
cell first. A worker that dies of something else in that moment must not cost a further death. Its watcher has
seen all that there is to see; it lives through the moment too, and sends what was written down here
beforehand, on a connection that was opened beforehand. It knows neither Redis nor any secret.
"""

from __future__ import annotations

import os
from typing import Any

import redis

from celery_poison.ledger.connection import REDIS_ERRORS
from celery_poison.ledger.wire import HANDSHAKE


class Deposition:
    """One command, kept in memory that the watcher of a cell can read.

    Args:
        client: of the ledger; one connection of it becomes the watcher's.

    Attributes:
        fds: descriptors for the watcher: the memory, and the connection. Empty where there can be none: the
            ledger is away, or its connections are encrypted by this process.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.fds: tuple[int, ...] = ()
        line = _open_line(client)
        if line is not None:
            self.fds = os.memfd_create("poison-deposition"), line

    def write(self, command: bytes) -> None:
        """Let the watcher say this; nothing, if it is empty."""
        if self.fds:
            os.ftruncate(self.fds[0], 0)
            os.pwrite(self.fds[0], command, 0)

    def hand_over(self) -> None:
        """The watcher has them: leave the connection to it."""
        if self.fds:
            os.close(self.fds[1])
            self.fds = self.fds[:1]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


def _open_line(client: redis.Redis) -> int | None:
    pool: Any = client.connection_pool
    if issubclass(pool.connection_class, redis.SSLConnection):
        return None
    connection = pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": HANDSHAKE})
    try:
        connection.connect()
    except REDIS_ERRORS:
        return None
    sock, connection._sock = connection._sock, None  # whoever disconnects it would end it for the watcher too
    try:
        return os.dup(sock.fileno())
    finally:
        sock.close()
