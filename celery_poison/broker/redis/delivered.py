"""One message of a Redis broker, and what a channel may have of them at a time.

What becomes of the messages is the affair of :mod:`celery_poison.broker.redis.book`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from time import time
from typing import Any, NamedTuple

from kombu.transport import redis, virtual
from kombu.transport.redis import Mutex, MutexHeld
from kombu.utils.json import dumps

from celery_poison.broker.redis.items import origin_of, tagged, wrapped
from celery_poison.broker.redis.unacked import Unacked
from celery_poison.broker.sealed import Sealed
from celery_poison.broker.tags import owner_of


class Arrival(NamedTuple):
    """An item that Redis has just given to a channel: ``item`` as it lay in the queue.

    kombu delivers it to the consumer that came last to its queue, which may be another channel of the
    connection: a project may have consumers of its own beside the tasks.
    """

    tag: str
    item: Any
    channel: Any


class RedisMessage(virtual.Message, Sealed):
    """A message from Redis, tagged as its receiver's own.

    A message pushed there that kombu could not read becomes one that cannot be decoded: with the whole
    item as its body, and what is wrong with it among its errors.
    """

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        arrival, channel.connection.arrival = channel.connection.arrival, None
        self.registered = arrival is not None  # as unacknowledged, already
        tag = arrival.tag if arrival else channel.next_tag()
        if arrival and arrival.channel is not channel:  # another consumer of the connection asked for it
            channel.book.take(tag, channel)
        self.queue_name = channel.arriving_from
        self.origin = origin_of(payload)
        try:
            super().__init__(tagged(payload, tag), channel=channel, **kwargs)
        except Exception as error:
            super().__init__(wrapped(arrival.item if arrival else payload, tag), channel=channel)
            self.errors = [(type(error), error, error.__traceback__)]

    #: It was given to the pool, or is about to be.
    is_handed = False

    @property
    def is_mine(self) -> bool:
        return bool(self.channel.book.holds(self.delivery_tag))

    def mark_done(self) -> None:
        self.went_back = self.channel.book.note_done(self.delivery_tag)

    def mark_stored(self) -> None:
        self.channel.book.note_moved(self.delivery_tag)

    def reject(self, requeue: bool = False) -> None:
        """As in kombu; a guarded message that is put back goes to the front of its queue (WAS-3)."""
        if requeue and self.to_front and not self.acknowledged:
            self.channel.qos.put_first(self.delivery_tag)
            self._state = "REQUEUED"
        else:
            super().reject(requeue=requeue)


class OwnedQoS(redis.QoS):
    """kombu's count of what a channel may prefetch; what becomes of the messages is the book's affair."""

    def append(self, message: Any, delivery_tag: str) -> None:
        if not message.registered:
            self.channel.book.take(delivery_tag, self.channel)
            # As in its queue, where every publish has a tag of its own.
            properties = {**message._raw["properties"], "delivery_tag": message.origin or delivery_tag}
            entry = dumps([{**message._raw, "properties": properties}, "", message.queue_name])
            with self.pipe_or_acquire() as pipe:
                pipe.zadd(self.unacked_index_key, {delivery_tag: time()})
                pipe.hset(self.unacked_key, delivery_tag, entry)
                pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self.channel.book.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.book.put_back(delivery_tag, leftmost=True)
        else:
            self.channel.book.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def put_first(self, delivery_tag: str) -> None:
        """Put an unacked message back to the front of its queue."""
        self.channel.book.put_back(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """As in kombu (shutdown, lost connection), but for what has begun; and it cannot fail."""
        self.channel.leave()
        self._delivered.clear()

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        """As in kombu, but what a living worker holds stays with it, however long that takes (TP1-8).

        https://github.com/celery/celery/issues/5935
        """
        self._vrestore_count += 1
        if (self._vrestore_count - 1) % (interval or 1):
            return
        with self.channel.conn_or_acquire() as client, suppress(MutexHeld):
            before = time() - self.visibility_timeout
            with Mutex(client, self.unacked_mutex_key, self.unacked_mutex_expire):
                unacked, mine = Unacked(self.channel), self.channel.book.tags()
                is_alive = cache(self.channel.owner_is_alive)

                def is_lost(tag: str) -> bool:
                    owner = owner_of(tag)
                    if owner is None:
                        return True  # plain kombu gave the tag: it knows no owners
                    if owner == self.channel.boot_id:
                        return tag not in mine  # its delivery was lost with a connection
                    return is_alive(owner) is False

                lost = [tag for tag in unacked.expired(before) if is_lost(tag)]
                unacked.restore(lost[start : start + num] if num else lost, record=True)
