"""Messages on their way from a Redis queue to their receiver's unacknowledged ones: nobody has seen them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from redis import Redis

from celery_poison.broker.unacked import Unacked, text


def arriving_key(boot_id: str, queue: str) -> str:
    """Return the list that holds a message between its queue and its registration."""
    return f"poison.arriving.{boot_id}.{queue}"


def _register(prefix: str, boot_id: str) -> str:
    return f"{prefix}poison.arriving.{boot_id}"


def announce(channel: Any, boot_id: str, queue: str) -> None:
    """Write down that ``boot_id`` is about to receive from ``queue``, for whoever outlives it."""
    Redis(connection_pool=channel.pool).sadd(_register(channel.global_keyprefix or "", boot_id), queue)


def put_back_arriving(unacked: Unacked, boot_id: str, queues: Iterable[str] = ()) -> Counter[str]:
    """Put back what ``boot_id`` was receiving, in its order and unchanged; return the number by queue.

    Args:
        unacked: of the broker.
        queues: further queues than the announced ones.
    """
    client, prefix = unacked.client, unacked.prefix
    announced: Any = client.smembers(_register(prefix, boot_id))
    moved: Counter[str] = Counter()
    for queue in {text(name) for name in announced}.union(queues):
        source = prefix + arriving_key(boot_id, queue)
        while client.llen(source) and client.lmove(source, prefix + queue, "LEFT", "RIGHT"):
            moved[queue] += 1
    client.delete(_register(prefix, boot_id))
    return moved
