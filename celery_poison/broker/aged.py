"""What has been unacknowledged for long on a Redis broker. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from celery import Celery
from kombu.transport import redis

from celery_poison.broker.publish import bounded_options
from celery_poison.broker.unacked import Unacked, owner_of, text

#: At most so many entries are looked at, and so many bytes of them read for their ids.
LOOKED_AT, READ = 1000, 1_000_000


@dataclass(frozen=True, slots=True)
class AgedEntry:
    """One message that was received and is not acknowledged.

    Attributes:
        id: its task id; its delivery tag where that was not read.
        boot_id: of the worker that received it; None of one without this plugin.
        age: seconds since it was received or renewed.
        visibility: the visibility timeout, in seconds.
    """

    id: str
    queue: str
    boot_id: str | None
    age: float
    visibility: float


def aged_entries(app: Celery, age: float) -> list[AgedEntry] | None:
    """Return what has not been renewed for ``age`` seconds, oldest first; None if the broker is not Redis.

    Raises:
        Exception: the broker is away or refuses; each transport has errors of its own.
    """
    with app.connection_for_read(transport_options=bounded_options(app)) as connection:
        if not issubclass(connection.get_transport_cls(), redis.Transport):
            return None
        return list(_entries(connection.channel(), age))


def _entries(channel: Any, age: float) -> Iterator[AgedEntry]:
    unacked = Unacked(channel)
    client: Any = unacked.client
    now = client.time()[0]
    oldest = client.zrangebyscore(unacked.index, "-inf", now - age, 0, LOOKED_AT, withscores=True)
    with client.pipeline(transaction=False) as pipe:
        for tag, _ in oldest:
            pipe.hstrlen(unacked.key, tag)
        sizes = pipe.execute()
    for (tag, since), size, read in zip(oldest, sizes, accumulate(sizes), strict=True):
        if size:  # else it was acknowledged a moment ago
            id, queue = _names(client.hget(unacked.key, tag)) if read <= READ else ("", "")
            owner = owner_of(text(tag))
            yield AgedEntry(id or text(tag), queue, owner, now - since, float(channel.visibility_timeout))


def _names(raw: bytes | None) -> tuple[str, str]:
    """Return task id and queue of an entry, as far as they can be read."""
    with suppress(TypeError, ValueError, KeyError):  # whatever a foreign one is made of
        message, _, queue = json.loads(text(raw))
        return str(message["headers"]["id"]), str(queue)
    return "", ""
