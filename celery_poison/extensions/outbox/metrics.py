"""What metrics say of the outbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from celery_poison.desk.overview import Overview
from celery_poison.metrics.family import Family, Rows


def _lanes(overview: Overview) -> Iterable[Any]:
    return overview.panel("outbox") or ()


def _waiting(overview: Overview) -> Rows:
    waiting = Counter[str]()
    for lane in _lanes(overview):
        waiting[lane.queue] += lane.waiting
    return [((queue,), number) for queue, number in sorted(waiting.items())]


def _age_in_database(overview: Overview) -> float | None:
    rows = overview.panel("outbox_database")
    known = rows and rows.rows is not None  # else it cannot be read
    return max(0.0, overview.at - (rows.oldest or overview.at)) if rows and known else None


FAMILIES = (
    Family(
        "outbox_messages",
        "Messages that wait in the outbox, by the queue that they go to",
        lambda s, o: _waiting(o),
        ("queue",),
    ),
    Family(
        "outbox_database_messages",
        "Messages that wait in your own database, where it can be read from here",
        lambda s, o: (rows := o.panel("outbox_database")) and rows.rows,
    ),
    Family(
        "outbox_database_oldest_seconds",
        "For how long the first of them has been there, 0 when none waits",
        lambda s, o: _age_in_database(o),
    ),
    Family(
        "outbox_blocked",
        "Queues to which sending from the outbox is blocked, or that of a task",
        lambda s, o: len({lane.queue for lane in _lanes(o) if lane.blocked}),
    ),
    Family(
        "outbox_unsent",
        "Messages tied to the success of a task that could not be sent, and wait for a person",
        lambda s, o: o.panel("unsent"),
    ),
)
