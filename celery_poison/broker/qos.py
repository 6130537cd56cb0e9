"""Which messages a worker on Redis holds, and how those that nobody holds any more go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, cached_property
from time import time
from typing import Any

from kombu.transport import redis, virtual
from kombu.transport.redis import Mutex, MutexHeld
from kombu.utils.json import dumps

from celery_poison.broker.unacked import Unacked, owner_of

#: Says of a boot id whether its worker lives; False also if nobody knows it, None if nobody can say now.
OwnerIsAlive = Callable[[str], bool | None]


class OwnedQoS(redis.QoS):
    """Unacked entries that name the queue they came from, and go back in one step each."""

    @cached_property
    def unacked(self) -> Unacked:
        return Unacked(self.channel)

    def append(self, message: Any, delivery_tag: str) -> None:
        if not message.registered:
            entry = dumps([message._raw, "", message.queue_name])
            with self.pipe_or_acquire() as pipe:
                pipe.zadd(self.unacked_index_key, {delivery_tag: time()})
                pipe.hset(self.unacked_key, delivery_tag, entry)
                pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)

    def held(self) -> set[str]:
        """Return the tags of what this channel received and has not acknowledged; from any thread."""
        while True:
            with suppress(RuntimeError):  # the event loop's thread changed them meanwhile
                return set(self._delivered).difference(set(self._dirty))

    def renew(self) -> None:
        """Let the visibility timeout of what is held begin anew; from any thread."""
        if tags := list(self.held()):
            self.unacked.renew(tags)

    def put_first(self, delivery_tag: str) -> None:
        """Put an unacked message back to the front of its queue."""
        self.restore_by_tag(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        self.unacked.restore([tag], leftmost=leftmost)

    def restore_unacked(self, client: Any = None) -> None:
        """As in kombu (shutdown, lost connection), but the oldest is the first in line again."""
        tags = list(self._delivered)
        try:
            self.unacked.restore(reversed(tags))
        except (self.channel.ResponseError, *self.channel.connection_errors):
            self.channel.opened.lost += tags
            raise
        self._delivered.clear()

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        """As in kombu, but what a living worker holds stays with it, however long that takes (TP1-8)."""
        self._vrestore_count += 1
        if (self._vrestore_count - 1) % (interval or 1):
            return
        with self.channel.conn_or_acquire() as client, suppress(MutexHeld):
            before = time() - self.visibility_timeout
            with Mutex(client, self.unacked_mutex_key, self.unacked_mutex_expire):
                lost = self._lost(self.unacked.expired(before))
                self.unacked.restore(lost[start : start + num] if num else lost, record=True)

    def _lost(self, tags: Iterable[str]) -> list[str]:
        is_alive = cache(self.channel.owner_is_alive)
        mine: set[str] = self.channel.held_by_process()

        def is_lost(tag: str) -> bool:
            owner = owner_of(tag)
            if owner is None:
                return True  # plain kombu gave the tag: it knows no owners
            if owner == self.channel.boot_id:
                return tag not in mine  # its delivery was lost with a connection
            return is_alive(owner) is False

        return [tag for tag in tags if is_lost(tag)]
