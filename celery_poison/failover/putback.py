"""Puts a dead worker's unacknowledged messages back on the Redis broker; others do that themselves."""

from __future__ import annotations

from celery import Celery
from kombu.transport import redis


def put_back(app: Celery, boot_id: str) -> int:
    """Put back every message whose delivery tag names ``boot_id``; return how many.

    Each message moves in one transaction of kombu's own, to the front of the queue it came from. Its
    redelivered flag is set, so that it is looked up before it runs.
    """
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        if not isinstance(channel, redis.Channel):
            return 0
        tags = _tags_of(channel, boot_id)
        with channel.conn_or_acquire() as client:
            # The last one pushed is delivered first, so the oldest goes last.
            for tag in sorted(tags, key=lambda t: int(t.rpartition("-")[2]), reverse=True):
                channel.qos.restore_by_tag(tag, client)
        return len(tags)


def _tags_of(channel: redis.Channel, boot_id: str) -> list[str]:
    with channel.conn_or_acquire() as client:
        tags = client.zrange(channel.unacked_index_key, 0, -1)
    names = (tag.decode() if isinstance(tag, bytes) else tag for tag in tags)
    return [name for name in names if name.startswith(f"{boot_id}-")]
