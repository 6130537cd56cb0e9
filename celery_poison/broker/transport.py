"""The broker's transport, swapped per worker process; the user's broker URL stays as it is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import Any

from amqp import AMQPError, spec
from kombu import Connection
from kombu.transport import pyamqp, redis

from celery_poison.broker.book import Books
from celery_poison.broker.rabbitmq import counts_no_nack, version_of
from celery_poison.broker.receive import OwnedChannel, OwnerIsAlive
from celery_poison.broker.sealed import Sealed
from celery_poison.ledger.in_step import hanging_up
from celery_poison.upstream import hooks

_KINDS_OF_CONNECTIONS = ("connection_class", "connection_class_ssl")


class AmqpMessage(pyamqp.Message, Sealed):
    """A message from RabbitMQ."""

    def __init__(self, msg: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(msg, channel=channel, **kwargs)
        self.queue_name = getattr(msg, "queue_name", None)

    def reject(self, requeue: bool = False) -> None:
        """As in kombu; what has not failed costs its queue's delivery limit nothing (NEW-30)."""
        if requeue and self.is_blameless and not self.acknowledged:
            self.channel.basic_nack(self.delivery_tag)
            self._state = "REQUEUED"
        else:
            super().reject(requeue=requeue)


class AmqpChannel(pyamqp.Channel):
    """A RabbitMQ channel that remembers the queue of each message.

    Attributes:
        heard_at: when a message came last, by the monotonic clock; 0 before the first.
    """

    Message = AmqpMessage
    heard_at = 0.0
    _prefetch = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._unacknowledged: set[Any] = set()
        super().__init__(*args, **kwargs)

    @property
    def is_full(self) -> bool:
        """Whether the broker sends no more before something is acknowledged; from any thread."""
        return self.connection is not None and 0 < self._prefetch <= len(self._unacknowledged)

    def basic_qos(self, prefetch_size: int, prefetch_count: int, *args: Any, **kwargs: Any) -> Any:
        self._prefetch = prefetch_count
        return super().basic_qos(prefetch_size, prefetch_count, *args, **kwargs)

    def basic_consume(self, queue: str, *args: Any, callback: Any = None, **kwargs: Any) -> Any:
        def receive(message: Any) -> Any:
            self.heard_at = monotonic()
            if not kwargs.get("no_ack"):
                self._unacknowledged.add(message.delivery_tag)
            message.queue_name = queue
            return callback(message)

        return super().basic_consume(queue, *args, callback=receive if callback else None, **kwargs)

    def basic_ack(self, delivery_tag: Any, *args: Any, **kwargs: Any) -> Any:
        self._unacknowledged.discard(delivery_tag)
        return super().basic_ack(delivery_tag, *args, **kwargs)

    def basic_reject(self, delivery_tag: Any, *args: Any, **kwargs: Any) -> Any:
        self._unacknowledged.discard(delivery_tag)
        return super().basic_reject(delivery_tag, *args, **kwargs)

    def basic_nack(self, delivery_tag: Any) -> None:
        """Put a message back; unlike by a reject, no quorum queue of RabbitMQ 4.3 counts that (NEW-30)."""
        self._unacknowledged.discard(delivery_tag)
        self._put_back(delivery_tag)

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """As in amqp; what a worker that leaves has prefetched goes back uncounted."""
        # Before 4.3 it makes no difference but in the order: closing returns them to the front everywhere.
        if self._unacknowledged and self.is_open and counts_no_nack(version_of(self.connection)):
            with suppress(OSError, AMQPError):
                self._put_back(0, all_of_them=True)
        return super().close(*args, **kwargs)

    def _put_back(self, delivery_tag: Any, *, all_of_them: bool = False) -> None:
        self.send_method(spec.Basic.Nack, "Lbb", (delivery_tag, all_of_them, True))


class AmqpConnection(pyamqp.Connection):
    Channel = AmqpChannel


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

    @cache
    def guarded(transport: Any) -> Any:
        if issubclass(transport, redis.Transport):
            if not hooks.fits(hooks.Part.REDIS):
                return transport
            asked = {"new_boot_id": staticmethod(boot_id), "owner_is_alive": staticmethod(owner_is_alive)}
            theirs = transport.Channel  # behind a Sentinel both kinds of its connections stay open too long
            kinds = {name: hanging_up(getattr(theirs, name)) for name in _KINDS_OF_CONNECTIONS}
            channel = type("OwnedChannel", (OwnedChannel, theirs), {"books": books, **asked, **kinds})
            return type("Transport", (transport,), {"Channel": channel, "arrival": None})
        if issubclass(transport, pyamqp.Transport) and hooks.fits(hooks.Part.RABBITMQ):
            return type("Transport", (transport,), {"Connection": AmqpConnection})
        return transport

    own = {"books": books, "guarded": staticmethod(guarded)}
    return type("GuardedConnection", (GuardedConnection,), own)
