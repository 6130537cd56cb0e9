"""Publishing a stored original again, into its queue by name: body and properties as they were received."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Self

import amqp.exceptions
import redis
from celery import Celery
from kombu.exceptions import KombuError
from kombu.transport import redis as redis_transport
from kombu.transport import virtual
from kombu.utils import json as kombu_json

from celery_poison.errors import PoisonError
from celery_poison.ledger.in_step import keep_in_step
from celery_poison.model import StoredMessage

#: Seconds; whoever publishes is told after these that the broker does not answer. Together they stay below
#: the time after which another operator may take a decision over.
CONNECT_TIMEOUT = 4.0
ANSWER_TIMEOUT = 10.0

#: Seconds after which no further message of a batch is begun: with the last one's it stays below that time.
BATCH_TIME = 10.0

#: Time limits and few attempts, in the words of each transport; the app's own options win.
_BOUNDS: dict[str, Any] = {
    "max_retries": 3,
    "interval_start": 0.2,
    "interval_step": 0.2,
    "socket_timeout": ANSWER_TIMEOUT,
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "read_timeout": ANSWER_TIMEOUT,
    "write_timeout": ANSWER_TIMEOUT,
}

#: What brokers note on a copy that they deliver again. It was true of that copy, not of the original.
_BROKERS_NOTES = ("redelivered", "x-delivery-count", "x-acquired-count")


def bounded_options(app: Celery) -> dict[str, Any]:
    """Return the transport options of ``app``, with limits where it has set none."""
    return {**_BOUNDS, **(app.conf.broker_transport_options or {})}


def bounded_connection(app: Celery) -> Any:
    """Return a connection for publishing on which nothing waits for ever; not connected yet."""
    # Confirmation makes publishing wait until RabbitMQ has the message.
    return app.connection_for_write(transport_options={**bounded_options(app), "confirm_publish": True})


class NotPublished(PoisonError):
    """The broker did not take a message: it is away or refuses."""


class Refused(NotPublished):
    """The broker is there, and does not take a message into this queue; into others it may."""


class NoSuchQueue(Refused):
    """The broker knows no queue of that name."""


class NoAnswer(NotPublished):
    """The broker did not answer in time. It may have the message all the same."""


class Parcel(NamedTuple):
    """A message that is to be published, the queue, and the headers in place of its own."""

    stored: StoredMessage
    queue: str
    headers: Mapping[str, Any]


class Publisher:
    """Puts messages into queues by their names, past all exchanges, so that each copy goes to one queue."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Any = None

    def __enter__(self) -> Self:
        self._connection = bounded_connection(self._app)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.release()

    def depth(self, queue: str) -> int:
        """Return how many messages wait in a queue; 0 where there is none.

        Raises:
            NotPublished: the broker is away.
        """
        with self._clear_errors(queue):
            return depth(self._connection, queue)

    def declare(self, queue: str) -> None:
        """Make a queue as Celery would for a task that is sent there; nobody consumes it for that.

        Raises:
            NotPublished: the broker is away or refuses.
        """
        queues = self._app.amqp.queues
        # Not queues[queue]: every worker without -Q would consume what it adds.
        wanted = queues.get(queue) or self._app.amqp.Queues(None, create_missing=True)[queue]
        with self._clear_errors(queue), self._connection.channel() as channel:
            wanted(channel).declare()

    def publish(self, stored: StoredMessage, queue: str, headers: Mapping[str, Any]) -> None:
        """Publish the original under ``headers``, but for what a broker noted there.

        Raises:
            NotPublished: the queue does not exist, or the broker is away or refuses.
        """
        (error,) = self.publish_each([Parcel(stored, queue, headers)])
        if error is not None:
            raise error

    def publish_each(self, parcels: Sequence[Parcel]) -> list[Exception | None]:
        """Publish messages in their order: to Redis in one round trip, elsewhere each is waited for.

        Returns for each None, or why it was not published: ``NotPublished``, or what is wrong with itself.
        Fewer than there are parcels: the last ones were not tried, since the others took long.
        """
        try:
            with self._clear_errors(""):
                channel = self._connection.default_channel
                if isinstance(channel, redis_transport.Channel):
                    return self._pushed(channel, parcels)
        except NotPublished as error:
            self._connection.collect()
            return [error] * len(parcels)
        return self._one_by_one(parcels)

    def _pushed(self, channel: Any, parcels: Sequence[Parcel]) -> list[Exception | None]:
        refused: list[Exception | None] = []
        #: Key -> number of a parcel -> what is pushed there: one command for each key is enough.
        pushes = defaultdict[str, dict[int, str]](dict)

        def push(parcel: Parcel) -> None:
            message = _message(channel, parcel)
            priority = channel._get_message_priority(message, reverse=False)
            pushes[channel._q_for_pri(parcel.queue, priority)][len(refused)] = kombu_json.dumps(message)

        for parcel in parcels:
            refused.append(_attempted(partial(push, parcel)))
        keep_in_step(channel.pool)
        with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for key, those in pushes.items():
                pipe.lpush(key, *those.values())
            replies = pipe.execute(raise_on_error=False)
        for those, reply in zip(pushes.values(), replies, strict=True):
            if isinstance(reply, Exception):
                for number in those:
                    refused[number] = self._translated(reply, parcels[number].queue)
        return refused

    def _one_by_one(self, parcels: Sequence[Parcel]) -> list[Exception | None]:
        refused: list[Exception | None] = []
        over = monotonic() + BATCH_TIME
        for parcel in parcels:
            if refused and monotonic() > over:
                break
            error = _attempted(partial(self._published, parcel))
            refused.append(error)
            if isinstance(error, NotPublished) and not isinstance(error, Refused):
                # The broker is away: each of the others would wait for it as long.
                return refused + [error] * (len(parcels) - len(refused))
        return refused

    def _published(self, parcel: Parcel) -> None:
        try:
            with self._clear_errors(parcel.queue):
                channel = self._connection.default_channel
                put = self._put if isinstance(channel, virtual.Channel) else self._send
                put(channel, parcel)
        except NotPublished:
            # A late confirmation on the old channel must not be taken for that of the next message.
            self._connection.collect()
            raise

    @contextmanager
    def _clear_errors(self, queue: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told = self._translated(error, queue)
            if told is error:
                raise
            raise told from error

    def _translated(self, error: Exception, queue: str) -> Exception:
        """Return what an exception of the broker means; one that is not the broker's as it is."""
        if isinstance(error, amqp.exceptions.NotFound):
            return NoSuchQueue(f"the broker knows no queue {queue!r}: start a worker that consumes it")
        if isinstance(error, amqp.exceptions.MessageNacked):  # no kind of error of a connection or channel
            return Refused(f"the queue {queue!r} refuses messages: it is full, or cannot store them")
        if isinstance(error, (amqp.exceptions.ChannelError, redis.ResponseError)):
            return Refused(f"the broker did not take the message into the queue {queue!r}: {error}")
        if isinstance(error, (TimeoutError, redis.TimeoutError)):
            return NoAnswer(f"the broker did not answer within {ANSWER_TIMEOUT:.0f} seconds")
        if isinstance(
            error, (*self._connection.connection_errors, *self._connection.channel_errors, KombuError)
        ):
            return NotPublished(f"the broker did not take the message: {error}")
        return error

    def _put(self, channel: Any, parcel: Parcel) -> None:
        channel._put(parcel.queue, _message(channel, parcel))

    def _send(self, channel: Any, parcel: Parcel) -> None:
        stored, queue, headers = parcel
        channel.queue_declare(queue, passive=True)
        properties = dict(stored.properties)
        message = channel.prepare_message(
            stored.body,
            content_type=stored.content_type or None,
            content_encoding=stored.content_encoding or None,
            headers=_without_notes(headers),
            properties=properties,
            priority=properties.pop("priority", None),
        )
        channel.basic_publish(message, exchange="", routing_key=queue, confirm_timeout=ANSWER_TIMEOUT)


def _message(channel: Any, parcel: Parcel) -> dict[str, Any]:
    """Return what kombu's virtual transports keep in a queue."""
    stored, _, headers = parcel
    properties = dict(stored.properties)
    properties["delivery_tag"] = channel._next_delivery_tag()
    info = {**properties.get("delivery_info", {})}
    info.pop("redelivered", None)
    properties["delivery_info"] = info
    packed = str(properties.get("body_encoding") or "").lower() == "base64"
    body = base64.b64encode(stored.body).decode() if packed else to_text(stored.body)
    return {
        "body": body,
        "content-encoding": stored.content_encoding or None,
        "content-type": stored.content_type or None,
        "headers": _without_notes(headers),
        "properties": properties,
    }


def _attempted(deed: Callable[[], None]) -> Exception | None:
    try:
        deed()
    except Exception as error:
        return error
    return None


def _without_notes(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name not in _BROKERS_NOTES}


def depth(connection: Any, queue: str) -> int:
    """Return how many messages wait in a queue of Redis or RabbitMQ; 0 where there is none."""
    if isinstance(connection.transport, virtual.Transport):
        return int(connection.default_channel._size(queue))  # one round trip
    # RabbitMQ closes a channel on which it was asked for a queue that it does not have.
    with connection.channel() as channel:
        try:
            return int(channel.queue_declare(queue, passive=True).message_count)
        except connection.channel_errors:
            return 0


def to_bytes(text: str) -> bytes:
    """Encode a body that its transport handed over as text; lone surrogates survive the way back."""
    return text.encode("utf-8", "surrogatepass")


def to_text(body: bytes) -> str:
    """Undo :func:`to_bytes`."""
    return body.decode("utf-8", "surrogatepass")


def client_of(channel: Any) -> redis.Redis:
    """Return a client on the connections of kombu's Redis channel; it writes keys in full."""
    keep_in_step(channel.pool)
    return redis.Redis(connection_pool=channel.pool)


def is_one_database(channel: Any, ledger: redis.Redis) -> bool:
    """Whether the queues of a channel are in the ledger's Redis database."""
    if not isinstance(channel, redis_transport.Channel):
        return False
    broker = client_of(channel)
    try:
        return _identity(broker) == _identity(ledger)
    except (redis.RedisError, OSError, KeyError):  # it may not be asked
        return False


def _identity(client: redis.Redis) -> tuple[str, int]:
    info: Any = client.info("server")
    return str(info["run_id"]), int(client.connection_pool.connection_kwargs.get("db") or 0)
