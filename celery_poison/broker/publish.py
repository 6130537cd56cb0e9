"""Publishing a stored original again, into its queue by name: body and properties as they were received."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from celery import Celery
from kombu.exceptions import KombuError

from celery_poison.broker.bounds import ANSWER_TIMEOUT, bounded_connection
from celery_poison.broker.kinds import broker_of
from celery_poison.broker.port import Broker, NoAnswer, NotPublished, Parcel, Refused
from celery_poison.model import StoredMessage

#: Seconds after which no further message of a batch is begun: with the last one's it stays below that time.
BATCH_TIME = 10.0


class Publisher:
    """Puts messages into queues by their names, past all exchanges, so that each copy goes to one queue."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Any = None
        self._broker = Broker()

    def __enter__(self) -> Self:
        self._connection = bounded_connection(self._app)
        self._broker = broker_of(self._connection)
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
            return self._broker.depth(self._connection, queue)

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
                refused = self._broker.publish_all(channel, parcels)
        except NotPublished as error:
            self._connection.collect()
            return [error] * len(parcels)
        if refused is None:
            return self._one_by_one(parcels)
        pairs = zip(parcels, refused, strict=True)
        return [error and self._translate(error, parcel.queue) for parcel, error in pairs]

    def _one_by_one(self, parcels: Sequence[Parcel]) -> list[Exception | None]:
        refused: list[Exception | None] = []
        over = monotonic() + BATCH_TIME
        for parcel in parcels:
            if refused and monotonic() > over:
                break
            error = _attempt(partial(self._publish_one, parcel))
            refused.append(error)
            if isinstance(error, NotPublished) and not isinstance(error, Refused):
                # The broker is away: each of the others would wait for it as long.
                return refused + [error] * (len(parcels) - len(refused))
        return refused

    def _publish_one(self, parcel: Parcel) -> None:
        try:
            with self._clear_errors(parcel.queue):
                self._broker.publish(self._connection.default_channel, parcel)
        except NotPublished:
            # A late confirmation on the old channel must not be taken for that of the next message.
            self._connection.collect()
            raise

    @contextmanager
    def _clear_errors(self, queue: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told = self._translate(error, queue)
            if told is error:
                raise
            raise told from error

    def _translate(self, error: Exception, queue: str) -> Exception:
        """Return the plugin's exception for one of the broker; any other exception as it is."""
        if (meaning := self._broker.meaning_of(error, queue)) is not None:
            return meaning
        if isinstance(error, TimeoutError):
            return NoAnswer.within(ANSWER_TIMEOUT)
        if isinstance(
            error, (*self._connection.connection_errors, *self._connection.channel_errors, KombuError)
        ):
            return NotPublished(f"the broker did not take the message: {error}")
        return error


def _attempt(deed: Callable[[], None]) -> Exception | None:
    try:
        deed()
    except Exception as error:
        return error
    return None
