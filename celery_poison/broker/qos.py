"""kombu's count of what a Redis channel may prefetch, over the book of what this process holds."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from time import time
from typing import Any

from kombu.transport import redis, virtual
from kombu.transport.redis import Mutex, MutexHeld
from kombu.utils.json import dumps

from celery_poison.broker.held import Held
from celery_poison.broker.unacked import Unacked, owner_of


class OwnedQoS(redis.QoS):
    """kombu's count of what a channel may prefetch; what becomes of the messages is the book's affair."""

    @property
    def _held(self) -> Held:
        held: Held = self.channel.held
        return held

    def append(self, message: Any, delivery_tag: str) -> None:
        if not message.registered:
            self._held.take(delivery_tag, self.channel)
            entry = dumps([message._raw, "", message.queue_name])
            with self.pipe_or_acquire() as pipe:
                pipe.zadd(self.unacked_index_key, {delivery_tag: time()})
                pipe.hset(self.unacked_key, delivery_tag, entry)
                pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self._held.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self._held.put_back(delivery_tag, leftmost=True)
        else:
            self._held.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def put_first(self, delivery_tag: str) -> None:
        """Put an unacked message back to the front of its queue."""
        self._held.put_back(delivery_tag)
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
                unacked = Unacked(self.channel)
                lost = self._lost(unacked.expired(before))
                unacked.restore(lost[start : start + num] if num else lost, record=True)

    def _lost(self, tags: Iterable[str]) -> list[str]:
        is_alive = cache(self.channel.owner_is_alive)
        mine = self._held.tags()

        def is_lost(tag: str) -> bool:
            owner = owner_of(tag)
            if owner is None:
                return True  # plain kombu gave the tag: it knows no owners
            if owner == self.channel.boot_id:
                return tag not in mine  # its delivery was lost with a connection
            return is_alive(owner) is False

        return [tag for tag in tags if is_lost(tag)]
