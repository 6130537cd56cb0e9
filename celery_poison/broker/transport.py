"""The broker's transport, swapped per worker process; the user's broker URL stays as it is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from kombu import Connection
from kombu.transport import pyamqp, redis

from celery_poison import hooks
from celery_poison.broker.held import Holdings
from celery_poison.broker.receive import OwnerIsAlive, owned_channel
from celery_poison.broker.sealed import Sealed


class AmqpMessage(pyamqp.Message, Sealed):
    """A message from RabbitMQ."""

    def __init__(self, msg: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(msg, channel=channel, **kwargs)
        self.queue_name = getattr(msg, "queue_name", None)


class AmqpChannel(pyamqp.Channel):
    """A RabbitMQ channel that remembers the queue of each message."""

    Message = AmqpMessage

    def basic_consume(self, queue: str, *args: Any, callback: Any = None, **kwargs: Any) -> Any:
        def receive(message: Any) -> Any:
            message.queue_name = queue
            return callback(message)

        return super().basic_consume(queue, *args, callback=receive if callback else None, **kwargs)


class AmqpConnection(pyamqp.Connection):
    Channel = AmqpChannel


class GuardedConnection(Connection):
    """A connection on our channels.

    Attributes:
        holdings: what this process holds of its Redis brokers' messages.
    """

    holdings: Holdings
    guarded: Callable[[Any], Any]
    _broken_off: Exception | None = None

    def break_off(self, error: Exception) -> None:
        """Let whoever waits for events next meet ``error``."""
        self._broken_off = error
        # Frequent heartbeats of RabbitMQ's keep a reader from ever giving up: it is woken by the end of them.
        reader = getattr(getattr(self._connection, "transport", None), "sock", None)
        if reader is not None:
            with suppress(OSError):
                reader.shutdown(socket.SHUT_RDWR)

    def drain_events(self, **kwargs: Any) -> Any:
        if self._broken_off is not None:
            raise self._broken_off
        return super().drain_events(**kwargs)

    def get_transport_cls(self) -> Any:
        return self.guarded(super().get_transport_cls())


def _nobody_can_say(boot_id: str) -> None:
    return None


def guarded_connection(
    boot_id: Callable[[], str],
    owner_is_alive: OwnerIsAlive = _nobody_can_say,
    holdings: Holdings | None = None,
) -> type[GuardedConnection]:
    """Return the connection class for one worker process; the user's broker URL stays as it is.

    Args:
        boot_id: is asked by every channel that opens. A connection may be in the making for minutes, and its
            worker taken for dead meanwhile: what it receives then must carry its new name.
        owner_is_alive: is asked about the boot ids of other workers, in the event loop's thread. Whatever is
            not known to be dead keeps its messages.
        holdings: of this process; None: its first.
    """
    holdings = holdings or Holdings()

    @cache
    def guarded(transport: Any) -> Any:
        if issubclass(transport, redis.Transport):
            if not hooks.fits(hooks.Part.REDIS):
                return transport
            channel = owned_channel(transport.Channel, boot_id, holdings, owner_is_alive)
            return type("Transport", (transport,), {"Channel": channel})
        if issubclass(transport, pyamqp.Transport) and hooks.fits(hooks.Part.RABBITMQ):
            return type("Transport", (transport,), {"Connection": AmqpConnection})
        return transport

    own = {"holdings": holdings, "guarded": staticmethod(guarded)}
    return type("GuardedConnection", (GuardedConnection,), own)
