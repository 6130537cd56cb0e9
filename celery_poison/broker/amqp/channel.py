"""RabbitMQ's channel: it knows the queue of each message, and puts back what has not failed uncounted."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any

from amqp import AMQPError, spec
from kombu.transport import pyamqp

from celery_poison.broker.amqp.versions import counts_no_nack, version_of
from celery_poison.broker.sealed import Sealed


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
