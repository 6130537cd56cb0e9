"""What metrics say of limits."""

from __future__ import annotations

from celery_poison.metrics.family import Family

FAMILIES = (
    Family(
        "queue_limit_messages",
        "Messages that may wait in a queue, of those that have a limit",
        lambda s, o: [((each.queue,), each.limit) for each in o.queues if each.limit is not None],
        ("queue",),
    ),
)
