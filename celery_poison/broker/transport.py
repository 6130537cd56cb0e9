"""The broker's transport, swapped per worker process; the user's broker URL stays as it is."""

from __future__ import annotations

from functools import cache
from typing import Any

from kombu import Connection
from kombu.transport import pyamqp, redis

from celery_poison.broker.redis_transport import owned_channel
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


@cache
def guarded_connection(boot_id: str) -> type[Connection]:
    """Return the connection class for one worker process; the user's broker URL stays as it is."""

    @cache
    def guarded(transport: Any) -> Any:
        if issubclass(transport, redis.Transport):
            channel = owned_channel(transport.Channel, boot_id)
            return type("Transport", (transport,), {"Channel": channel})
        if issubclass(transport, pyamqp.Transport):
            return type("Transport", (transport,), {"Connection": AmqpConnection})
        return transport

    class GuardedConnection(Connection):
        _broken_off: Exception | None = None

        def break_off(self, error: Exception) -> None:
            """Let whoever waits for events next meet ``error``."""
            self._broken_off = error

        def drain_events(self, **kwargs: Any) -> Any:
            if self._broken_off is not None:
                raise self._broken_off
            return super().drain_events(**kwargs)

        def get_transport_cls(self) -> Any:
            return guarded(super().get_transport_cls())

    return GuardedConnection
