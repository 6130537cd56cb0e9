"""Pickled messages on a socket between a worker and its cell, as between Celery and its pool processes."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

from billiard.einfo import ExceptionInfo

_LENGTH = struct.Struct("!Q")


def send(sock: socket.socket, message: Any) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone.
        Exception: whatever the message's parts raise when they are pickled; nothing was sent then.
    """
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive(sock: socket.socket) -> Any:
    """Return the next message.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return pickle.loads(_exactly(sock, length))


def info_of(error: Exception) -> ExceptionInfo:
    """Return ``error`` as a pool process sends one."""
    try:
        raise error
    except Exception:
        return ExceptionInfo()


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
