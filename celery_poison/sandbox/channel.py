"""What passes between a worker and its cell: pickled messages on a socket, as with Celery's pool processes.

The worker sends a :class:`Setup` first, then ``(arguments, alone)`` for each suspect. The cell answers
``("ready", pid, tasks)`` first, then ``("accepted", pid, time)`` and ``("result", ok, pickled value, stays)``
for each suspect.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery import Celery

from celery_poison.sandbox.loading import Origin

_LENGTH = struct.Struct("!Q")


class Prepared(NamedTuple):
    """A process that is ready to run suspects.

    Attributes:
        run: takes the arguments of one start and what it says about what runs beside it; returns what a
            pool process would return.
        tasks: names of those that it knows.
    """

    run: Callable[[tuple[Any, ...], int], Any]
    tasks: tuple[str, ...]


#: Makes the fresh process ready for the app's tasks, given the descriptor of the worker's lease.
Prepare = Callable[[Celery, int], Prepared]


class Setup(NamedTuple):
    """How a fresh process becomes a cell.

    Attributes:
        origin: the app.
        prepare: makes it ready to run that app's tasks.
        patched_for: the pool for whose greenlets the worker is patched; empty: it is not.
    """

    origin: Origin
    prepare: Prepare
    patched_for: str = ""


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
