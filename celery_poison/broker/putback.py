"""Puts a dead worker's unacknowledged messages back on the Redis broker; others do that themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from celery import Celery
from kombu.transport import redis

from celery_poison.broker.arriving import put_back_arriving
from celery_poison.broker.publish import bounded_options
from celery_poison.broker.unacked import Unacked, owner_of


@dataclass(frozen=True, slots=True)
class PutBack:
    """What was put back, where the broker leaves that to us; by earlier calls and by others too.

    Attributes:
        count: the number of messages.
        mids: which; None if the broker did it, and nobody can say.
        queues: the number of messages by queue.
        refused: the number of those that stay unacknowledged: nobody can read them, or place them.
    """

    count: int = 0
    mids: frozenset[str] | None = None
    queues: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0


def owners(app: Celery) -> set[str]:
    """Return the boot ids under which messages lie unacknowledged on a Redis broker.

    Raises:
        redis.exceptions.RedisError: Redis is away.
    """
    with app.connection_for_read(transport_options=bounded_options(app)) as connection:
        channel = connection.default_channel
        if not isinstance(channel, redis.Channel):
            return set()
        return {owner for tag in Unacked(channel).tags() if (owner := owner_of(tag))}


def put_back(app: Celery, boot_id: str, queues: Iterable[str]) -> PutBack:
    """Put back every message that the worker process ``boot_id`` received from Redis (EMS-6).

    Each message moves in one step, to the front of the queue it came from, the oldest first in line. Its
    redelivered flag is set, so that it is looked up before it runs. Whoever is killed in between is
    followed by the next call, which moves the rest and says the same; two calls at once share the work.

    Args:
        queues: the queues that worker consumed, as far as they are known.

    Raises:
        redis.exceptions.RedisError: Redis is away, or takes no messages at the moment; call again.
    """
    with app.connection_for_read(transport_options=bounded_options(app)) as connection:
        channel = connection.default_channel
        if not isinstance(channel, redis.Channel):
            return PutBack()
        # What was arriving is younger than all that had arrived: it goes back first, and is behind it then.
        unacked = Unacked(channel)
        by_queue = put_back_arriving(unacked, boot_id, queues)
        count = by_queue.total()
        refused = unacked.restore(unacked.tags_of(boot_id), record=True)
        mids: set[str] = set()
        for mid, places in unacked.returned(boot_id):
            count += 1
            by_queue.update(places)
            mids.update({mid} if mid else ())
        return PutBack(count, frozenset(mids), dict(by_queue), refused)
