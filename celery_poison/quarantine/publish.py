"""Publishing a stored original again: body, properties and foreign headers as they were received."""

from __future__ import annotations

import base64
from types import TracebackType
from typing import Any, Self

import amqp.exceptions
from celery import Celery
from kombu.transport import virtual

from celery_poison.errors import PoisonError
from celery_poison.headers import MARK, RELEASE
from celery_poison.records import Parcel


class PublishRefused(PoisonError):
    """The broker did not take the message; it stays in quarantine."""


class Publisher:
    """Puts messages into queues by their names, past all exchanges, so that each copy goes to one queue."""

    def __init__(self, app: Celery, quarantine_queue: str) -> None:
        self._app = app
        self._quarantine_queue = quarantine_queue
        self._connection: Any = None

    def __enter__(self) -> Self:
        # Confirmation makes publishing wait until RabbitMQ has the message.
        options = {"confirm_publish": True}
        self._connection = self._app.connection_for_write(transport_options=options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.release()

    def publish(self, parcel: Parcel, queue: str, release: int) -> None:
        """Publish the original, stamped with the number of its release.

        Raises:
            PublishRefused: the queue does not exist, or the broker is away or refuses.
        """
        headers = {**parcel.headers, RELEASE: release}
        headers.pop(MARK, None)
        errors = (*self._connection.connection_errors, *self._connection.channel_errors)
        try:
            channel = self._connection.default_channel
            if isinstance(channel, virtual.Channel):
                self._put(channel, parcel, headers, queue)
            else:
                self._send(channel, parcel, headers, queue)
        except amqp.exceptions.NotFound:
            self._connection.revive(None)
            raise PublishRefused(
                f"the broker knows no queue {queue!r}: start a worker that consumes it"
            ) from None
        except errors as error:
            raise PublishRefused(f"the broker refused the message: {error}") from error

    def _put(self, channel: Any, parcel: Parcel, headers: dict[str, Any], queue: str) -> None:
        properties = dict(parcel.properties)
        properties["delivery_tag"] = channel._next_delivery_tag()
        info = {**properties.get("delivery_info", {})}
        info.pop("redelivered", None)
        properties["delivery_info"] = info
        encoding = properties.get("body_encoding")
        if encoding == "base64":
            body: Any = base64.b64encode(parcel.body).decode()
        else:
            body = parcel.body.decode("utf-8")
        message = {
            "body": body,
            "content-encoding": parcel.content_encoding or None,
            "content-type": parcel.content_type or None,
            "headers": headers,
            "properties": properties,
        }
        channel._put(queue, message)

    def _send(self, channel: Any, parcel: Parcel, headers: dict[str, Any], queue: str) -> None:
        channel.queue_declare(queue, passive=True)
        properties = {
            name: value
            for name, value in parcel.properties.items()
            if name not in ("application_headers", "content_type", "content_encoding")
        }
        message = channel.prepare_message(
            parcel.body,
            content_type=parcel.content_type or None,
            content_encoding=parcel.content_encoding or None,
            headers=headers,
            properties=properties,
            priority=properties.pop("priority", None),
        )
        channel.basic_publish(message, exchange="", routing_key=queue)
