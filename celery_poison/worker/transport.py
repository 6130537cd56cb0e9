"""The broker's transport, per app: messages arrive unopened, and every unacked entry names its owner.

* Decompression waits until the message was let in: a bomb must not go off before it is judged.
* On Redis each delivery gets a fresh tag that begins with the worker's boot id. Ownership is thus
  recorded in the same step as the unacked entry itself, and a late acknowledgement by a worker that
  lost the message cannot remove the entry of its new owner (EMS-6, EMS-8).
* On Redis the unacked entry names the queue that the message came from, so that whoever restores it,
  kombu included, puts it back there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from time import time
from typing import Any

from kombu import Connection
from kombu.compression import decompress
from kombu.message import Message
from kombu.transport import pyamqp, redis, virtual
from kombu.utils.json import dumps


class Sealed(Message):  # type: ignore[misc]
    """A message whose body stays as it was received until somebody reads it.

    Attributes:
        received: the body as received.
        queue_name: the queue it was consumed from, if known.
        poison: the worker's notes about this delivery.
    """

    queue_name: str | None = None
    poison: Any = None
    to_front = False

    def __init__(self, body: Any = None, headers: Any = None, **kwargs: Any) -> None:
        self._compression = headers.get("compression") if isinstance(headers, dict) else None
        if not self._compression:
            super().__init__(body=body, headers=headers, **kwargs)
        else:
            bare = {name: value for name, value in headers.items() if name != "compression"}
            super().__init__(body=body, headers=bare, **kwargs)
            self.headers = headers
        self.received = self._body

    @property
    def sealed(self) -> bool:
        """Whether the body is still compressed."""
        return bool(self._compression)

    @property
    def body(self) -> Any:
        if self._compression:
            method, self._compression = self._compression, None
            self._body = decompress(self._body, method)
        return self._body

    @body.setter
    def body(self, value: Any) -> None:
        self._body = value


class RedisMessage(virtual.Message, Sealed):  # type: ignore[misc]
    """A message from Redis, tagged as its receiver's own."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        payload["properties"]["delivery_tag"] = channel.next_tag()
        super().__init__(payload, channel=channel, **kwargs)
        self.queue_name = channel.arriving_from

    def reject(self, requeue: bool = False) -> None:
        """As in kombu; a guarded message that is put back goes to the front of its queue (WAS-3)."""
        if requeue and self.to_front and not self.acknowledged:
            self.channel.qos.put_first(self.delivery_tag)
            self._state = "REQUEUED"
        else:
            super().reject(requeue=requeue)


class AmqpMessage(pyamqp.Message, Sealed):  # type: ignore[misc]
    """A message from RabbitMQ."""

    def __init__(self, msg: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(msg, channel=channel, **kwargs)
        self.queue_name = getattr(msg, "queue_name", None)


class OwnedQoS(redis.QoS):  # type: ignore[misc]
    """Unacked entries that name the queue they came from."""

    def append(self, message: Any, delivery_tag: str) -> None:
        queue = getattr(message, "queue_name", None)
        if queue is None:
            super().append(message, delivery_tag)
            return
        entry = dumps([message._raw, "", queue])
        with self.pipe_or_acquire() as pipe:
            pipe.zadd(self.unacked_index_key, {delivery_tag: time()})
            pipe.hset(self.unacked_key, delivery_tag, entry)
            pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    def put_first(self, delivery_tag: str) -> None:
        """Put an unacked message back to the front of its queue."""
        self.restore_by_tag(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)


def _redis_channel(base: Any, boot_id: str) -> Any:
    numbers = count(1)

    class OwnedChannel(base):  # type: ignore[misc]
        QoS = OwnedQoS
        Message = RedisMessage
        arriving_from: str | None = None

        def next_tag(self) -> str:
            return f"{boot_id}-{next(numbers)}"

        def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
            result = super().basic_consume(queue, *args, **kwargs)
            callbacks = self.connection._callbacks
            callbacks[queue] = self._named(queue, callbacks[queue])
            return result

        def _named(self, queue: str, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def receive(raw: Any) -> Any:
                self.arriving_from = queue
                return callback(raw)

            return receive

        def _reject_inbound_message(self, raw: Any) -> Any:
            self.arriving_from = None
            return super()._reject_inbound_message(raw)

        def basic_get(self, queue: str, *args: Any, **kwargs: Any) -> Any:
            self.arriving_from = queue
            return super().basic_get(queue, *args, **kwargs)

    return OwnedChannel


class AmqpChannel(pyamqp.Channel):  # type: ignore[misc]
    """A RabbitMQ channel that remembers the queue of each message."""

    Message = AmqpMessage

    def basic_consume(self, queue: str, *args: Any, callback: Any = None, **kwargs: Any) -> Any:
        def receive(message: Any) -> Any:
            message.queue_name = queue
            return callback(message)

        return super().basic_consume(queue, *args, callback=receive if callback else None, **kwargs)


class AmqpConnection(pyamqp.Connection):  # type: ignore[misc]
    Channel = AmqpChannel


@cache
def guarded_connection(boot_id: str) -> type[Connection]:
    """Return the connection class for one worker process; the user's broker URL stays as it is."""

    @cache
    def guarded(transport: Any) -> Any:
        if issubclass(transport, redis.Transport):
            channel = _redis_channel(transport.Channel, boot_id)
            return type("Transport", (transport,), {"Channel": channel})
        if issubclass(transport, pyamqp.Transport):
            return type("Transport", (transport,), {"Connection": AmqpConnection})
        return transport

    class GuardedConnection(Connection):  # type: ignore[misc]
        def get_transport_cls(self) -> Any:
            return guarded(super().get_transport_cls())

    return GuardedConnection
