"""How Redis answers the port."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import redis
from celery import Celery

from celery_poison.basics.parts import Finding
from celery_poison.broker.bounds import ANSWER_TIMEOUT
from celery_poison.broker.port import (
    Broker,
    HeldMessage,
    NoAnswer,
    Parcel,
    Push,
    PutBack,
    ReceivingProcess,
    Refused,
    WaitingMessage,
)
from celery_poison.broker.redis import checks, queues
from celery_poison.broker.redis.client import is_one_database
from celery_poison.broker.redis.receiving import OwnedChannel
from celery_poison.broker.redis.unacked import Unacked, put_back_arriving, text
from celery_poison.broker.tags import owner_of
from celery_poison.ledger.in_step import hanging_up
from celery_poison.upstream import hooks

_KINDS_OF_CONNECTIONS = ("connection_class", "connection_class_ssl")

#: Bytes of unacknowledged messages that are read for their ids and queues.
BYTES_READ = 1_000_000


class RedisBroker(Broker):
    """Redis or Valkey."""

    title = "Redis"
    forgets = True
    flags_redelivery = True
    counts = True

    def name_of_server(self, connection: Any) -> str:
        with connection.default_channel.conn_or_acquire() as client:
            return str(client.info("server").get("run_id", ""))

    def is_database_of(self, channel: Any, ledger: redis.Redis) -> bool:
        return is_one_database(channel, ledger)

    def is_at(self, channel: Any, address: tuple[str, int]) -> bool:
        connection = getattr(getattr(channel, "client", None), "connection", None)
        return connection is not None and (connection.host, connection.port) == address

    def examine(self, app: Celery, connection: Any) -> Iterator[Finding]:
        yield checks.receiving(connection.default_channel)
        yield checks.announcing(connection.default_channel)

    def may_write(self, app: Celery, connection: Any, queues: Mapping[str, str]) -> Iterator[Finding]:
        return checks.writing(connection.default_channel, queues)

    def guard(self, transport: Any, process: ReceivingProcess) -> Any:
        if not hooks.fits(hooks.Area.REDIS):
            return transport
        boot_id, owner_is_alive, books = process
        asked = {"new_boot_id": staticmethod(boot_id), "owner_is_alive": staticmethod(owner_is_alive)}
        theirs = transport.Channel  # behind a Sentinel both kinds of its connections stay open too long
        kinds = {name: hanging_up(getattr(theirs, name)) for name in _KINDS_OF_CONNECTIONS}
        channel = type("OwnedChannel", (OwnedChannel, theirs), {"books": books, **asked, **kinds})
        return type("Transport", (transport,), {"Channel": channel, "arrival": None})

    def finish_poll(self, channel: Any, patience: float) -> None:
        if isinstance(channel, OwnedChannel):
            channel.finish_poll(patience)

    # --- putting back ---------------------------------------------------------------------------

    def owners(self, connection: Any) -> set[str]:
        tags = Unacked(connection.default_channel).tags()
        return {owner for tag in tags if (owner := owner_of(tag))}

    def put_back(self, connection: Any, boot_id: str, queues: Iterable[str]) -> PutBack:
        # What was arriving is younger than all that had arrived: it goes back first, and is behind it then.
        unacked = Unacked(connection.default_channel)
        by_queue = put_back_arriving(unacked, boot_id, queues)
        count = by_queue.total()
        unacked.restore(unacked.tags_of(boot_id), record=True)
        mids: set[str] = set()
        for mid, places in unacked.returned(boot_id):
            count += 1
            by_queue.update(places)
            mids.update({mid} if mid else ())
        return PutBack(count, frozenset(mids), dict(by_queue))

    def unacknowledged(self, connection: Any, age: float, most: int) -> Iterator[HeldMessage]:
        channel = connection.channel()
        held, visibility = Unacked(channel), float(channel.visibility_timeout)
        client: Any = held.client
        now = client.time()[0]
        oldest = client.zrangebyscore(held.index, "-inf", now - age, 0, most, withscores=True)
        with client.pipeline(transaction=False) as pipe:
            for tag, _ in oldest:
                pipe.hstrlen(held.key, tag)
            sizes = pipe.execute()
        for (tag, since), size, bytes_read in zip(oldest, sizes, accumulate(sizes), strict=True):
            name, is_read = text(tag), bytes_read <= BYTES_READ

            def read(tag: Any = tag, size: int = size, is_read: bool = is_read) -> tuple[str, str] | None:
                if not size:
                    return None
                return _names(client.hget(held.key, tag)) if is_read else ("", "")

            yield HeldMessage(name, owner_of(name), now - since, visibility, read)

    # --- queues, and publishing -----------------------------------------------------------------

    def depth(self, connection: Any, queue: str) -> int:
        return int(connection.default_channel._size(queue))  # one round trip

    def oldest(self, connection: Any, queue: str, most: int) -> Iterator[WaitingMessage]:
        return queues.oldest(connection.default_channel, queue, most)

    def publish_all(self, channel: Any, parcels: Sequence[Parcel]) -> list[Exception | None]:
        return queues.publish_all(channel, parcels)

    def pushes(
        self, channel: Any, exchange: str, routing_key: str, body: bytes, parts: Mapping[str, Any]
    ) -> list[Push] | None:
        return queues.pushes_of(channel, exchange, routing_key, body, parts)

    def push(self, channel: Any, pushes: Iterable[Push]) -> None:
        queues.push(channel, pushes)

    def meaning_of(self, error: Exception, queue: str) -> Exception | None:
        if isinstance(error, redis.ResponseError):
            return Refused(f"the broker did not take the message into the queue {queue!r}: {error}")
        return NoAnswer.within(ANSWER_TIMEOUT) if isinstance(error, redis.TimeoutError) else None


def _names(raw: bytes | None) -> tuple[str, str]:
    """Return task id and queue of an entry, as far as they can be read."""
    with suppress(TypeError, ValueError, KeyError):  # whatever a foreign one is made of
        message, _, queue = json.loads(text(raw))
        return str(message["headers"]["id"]), str(queue)
    return "", ""
