"""Puts a dead worker's unacknowledged messages back on the Redis broker; others do that themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu.transport import redis
from kombu.utils.json import loads

from celery_poison.broker.redis_transport import arriving_key
from celery_poison.headers import mid_of


@dataclass(frozen=True, slots=True)
class PutBack:
    """What was put back: how many messages, and which, where the broker leaves that to us."""

    count: int = 0
    mids: frozenset[str] | None = None


def put_back(app: Celery, boot_id: str, queues: Iterable[str]) -> PutBack:
    """Put back every message that the worker process ``boot_id`` received from Redis.

    Each message moves in one step, to the front of the queue it came from. Its redelivered flag is
    set, so that it is looked up before it runs.

    Args:
        queues: the queues that worker consumed.
    """
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        if not isinstance(channel, redis.Channel):
            return PutBack()
        with channel.conn_or_acquire() as client:
            tags = _tags_of(channel, client, boot_id)
            mids = [_mid(client.hget(channel.unacked_key, tag)) for tag in tags]
            for tag in tags:
                channel.qos.restore_by_tag(tag, client)
            unseen = sum(_put_back_arriving(channel, client, boot_id, queue) for queue in queues)
        return PutBack(len(tags) + unseen, frozenset(mids))


def _tags_of(channel: Any, client: Any, boot_id: str) -> list[str]:
    found = client.zrange(channel.unacked_index_key, 0, -1)
    names = (tag.decode() if isinstance(tag, bytes) else tag for tag in found)
    mine = [name for name in names if name.startswith(f"{boot_id}-")]
    # The one pushed last is delivered first, so the oldest goes last.
    return sorted(mine, key=lambda tag: int(tag.rpartition("-")[2]), reverse=True)


def _mid(entry: bytes | None) -> str:
    try:
        return mid_of(loads(entry)[0]["headers"])
    except (TypeError, KeyError, ValueError, AttributeError):
        return ""  # not a task message of ours: nothing on record depends on it


def _put_back_arriving(channel: Any, client: Any, boot_id: str, queue: str) -> int:
    """Put back what was between its queue and its registration; it was seen by nobody."""
    prefix = channel.global_keyprefix or ""
    source, target = prefix + arriving_key(boot_id, queue), prefix + queue
    moved = 0
    while client.execute_command("LMOVE", source, target, "LEFT", "RIGHT"):
        moved += 1
    return moved
