"""How RabbitMQ answers the port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import amqp.exceptions
from celery import Celery

from celery_poison.basics.parts import Finding
from celery_poison.broker.amqp import checks
from celery_poison.broker.amqp.channel import AmqpConnection
from celery_poison.broker.amqp.versions import filled_by_delays, has_fixed_prefetch
from celery_poison.broker.bounds import ANSWER_TIMEOUT
from celery_poison.broker.envelope import without_notes
from celery_poison.broker.port import (
    Broker,
    NoSuchQueue,
    Parcel,
    ReceivingProcess,
    Refused,
    WaitingMessage,
)
from celery_poison.upstream import hooks


class AmqpBroker(Broker):
    """RabbitMQ, or another broker that speaks AMQP 0.9.1."""

    title = "RabbitMQ"
    flags_redelivery = True
    counts = True

    def name_of_server(self, connection: Any) -> str:
        _ = connection.default_channel  # which connects
        return str(connection.connection.server_properties.get("cluster_name", ""))

    def examine(self, app: Celery, connection: Any) -> Iterator[Finding]:
        _ = connection.default_channel
        return checks.examine(app, connection)

    def may_write(self, app: Celery, connection: Any, queues: Mapping[str, str]) -> Iterator[Finding]:
        return checks.writing(app, connection, queues)

    def filled_by_delays(self, app: Celery, connection: Any) -> list[str]:
        return filled_by_delays(app, connection)

    def has_fixed_prefetch(self, app: Celery, connection: Any) -> bool:
        return has_fixed_prefetch(app, connection)

    def guard(self, transport: Any, process: ReceivingProcess) -> Any:
        if not hooks.fits(hooks.Area.RABBITMQ):
            return transport
        return type("Transport", (transport,), {"Connection": AmqpConnection})

    # --- queues, and publishing -----------------------------------------------------------------

    def depth(self, connection: Any, queue: str) -> int:
        # RabbitMQ closes a channel on which it was asked for a queue that it does not have.
        with connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:
                return 0

    def oldest(self, connection: Any, queue: str, most: int) -> Iterator[WaitingMessage]:
        with connection.channel() as channel:  # what is not acknowledged goes back when it is closed
            for _ in range(most):
                raw = channel.basic_get(queue)
                if raw is None:
                    return
                yield WaitingMessage(
                    channel.message_to_python(raw), partial(_remove, channel, raw.delivery_tag)
                )

    def publish(self, channel: Any, parcel: Parcel) -> None:
        stored, queue, headers = parcel
        channel.queue_declare(queue, passive=True)
        properties = dict(stored.properties)
        message = channel.prepare_message(
            stored.body,
            content_type=stored.content_type or None,
            content_encoding=stored.content_encoding or None,
            headers=without_notes(headers),
            properties=properties,
            priority=properties.pop("priority", None),
        )
        channel.basic_publish(message, exchange="", routing_key=queue, confirm_timeout=ANSWER_TIMEOUT)

    def confirms(self, connection: Any) -> bool:
        return hasattr(connection.connection, "on_blocked")

    def flush(self, channel: Any) -> None:
        channel.exchange_declare("amq.direct", "direct", passive=True)

    def meaning_of(self, error: Exception, queue: str) -> Exception | None:
        if isinstance(error, amqp.exceptions.NotFound):
            return NoSuchQueue(f"the broker knows no queue {queue!r}: start a worker that consumes it")
        if isinstance(error, amqp.exceptions.MessageNacked):  # no kind of error of a connection or channel
            return Refused(f"the queue {queue!r} refuses messages: it is full, or cannot store them")
        if isinstance(error, amqp.exceptions.ChannelError):
            return Refused(f"the broker did not take the message into the queue {queue!r}: {error}")
        return None


def _remove(channel: Any, tag: Any) -> bool:
    channel.basic_ack(tag)
    return True
