"""The broker's transport, swapped per worker process; the user's broker URL stays as it is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from kombu import Connection

from celery_poison.broker.books import Books
from celery_poison.broker.kinds import broker_of
from celery_poison.broker.port import OwnerIsAlive, ReceivingProcess


class GuardedConnection(Connection):
    """A connection on our channels.

    Attributes:
        books: what this process holds of its Redis brokers' messages.
    """

    books: Books
    guarded: Callable[[Any], Any]
    _broken_off: Exception | None = None

    def break_off(self, error: Exception) -> None:
        """Let the next wait for events meet ``error``."""
        self._broken_off = error
        # Frequent heartbeats of RabbitMQ's keep a reader from ever giving up: it is woken by the end of them.
        if getattr(self._connection, "connected", False):  # else amqp connects, to have a transport
            with suppress(AttributeError, OSError):
                self._connection.transport.sock.shutdown(socket.SHUT_RDWR)

    def drain_events(self, **kwargs: Any) -> Any:
        connection = self.connection  # which is made anew if it was lost; greenlets run meanwhile
        if self._broken_off is not None:
            raise self._broken_off
        return self.transport.drain_events(connection, **kwargs)

    def get_transport_cls(self) -> Any:
        return self.guarded(super().get_transport_cls())


def guarded_connection(
    boot_id: Callable[[], str],
    owner_is_alive: OwnerIsAlive = lambda boot_id: None,
    books: Books | None = None,
) -> type[GuardedConnection]:
    """Return the connection class for one worker process; the user's broker URL stays as it is.

    Args:
        boot_id: is asked by every channel that opens. A connection may be in the making for minutes, and its
            worker taken for dead meanwhile: what it receives then must carry its new name.
        owner_is_alive: is asked about the boot ids of other workers, in the event loop's thread. Whatever is
            not known to be dead keeps its messages.
        books: of this process; None: its first.
    """
    books = books or Books()

    process = ReceivingProcess(boot_id, owner_is_alive, books)

    @cache
    def guarded(transport: Any) -> Any:
        return broker_of(transport).guard(transport, process)

    own = {"books": books, "guarded": staticmethod(guarded)}
    return type("GuardedConnection", (GuardedConnection,), own)
