"""What each queue has in store for its workers, and how near it is to its limit (MSG-3, MSG-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from celery import Celery

from celery_poison.fleet import WorkerRecord
from celery_poison.ledger.queries import Queries
from celery_poison.plugin import plugin_of
from celery_poison.producer.limits import Limit, limit_of
from celery_poison.quarantine.deaf import Unread, waiting_in
from celery_poison.settings import Settings

#: Queues that are told apart at most.
MOST = 200


@dataclass(frozen=True, slots=True)
class Backlog:
    """One queue, or the quarantine.

    Attributes:
        waiting: messages that the broker has not delivered, of the quarantine those in it; None: not known.
        parked: messages of it that wait in the ledger.
        candidates: flagged messages of it, be they waiting, parked or running.
        limit: messages that may wait; None: any number.
    """

    queue: str
    waiting: int | None
    parked: int
    candidates: int
    limit: int | None

    @property
    def warning(self) -> str:
        """A sentence where people should be warned; empty where not."""
        if self.limit is None or self.waiting is None or not Limit(self.limit, False).is_near(self.waiting):
            return ""
        over = self.waiting - self.limit
        how = f"{over} above its limit" if over > 0 else f"{self.waiting * 100 // self.limit} % of its limit"
        return f"queue {self.queue} holds {self.waiting} messages, {how} of {self.limit}"


def read_backlogs(
    app: Celery, queries: Queries, workers: Iterable[WorkerRecord], quarantined: int | None
) -> tuple[list[Backlog], list[str]]:
    """Return how each queue stands that is consumed, limited, or has messages in the ledger.

    The second list says why that cannot be known, if it cannot.

    Args:
        quarantined: messages in quarantine; None: nobody wants to know.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    if quarantined is None:
        return [], []
    settings = plugin_of(app).settings
    parked = Counter(parking.start.queue for _, parking in queries.parked_now())
    candidates = Counter(record.queue for record in queries.candidates())
    consumed = {
        queue for each in workers if each.alive for queue in f"{each.queues},{each.paused}".split(",")
    }
    names = consumed | {*parked} | {*candidates} | {*(settings.queues or {})}
    queues = sorted(names - {"", settings.quarantine_queue})[:MOST]
    try:
        waiting, unread = waiting_in(app, queues), []
    except Unread as error:
        waiting, unread = {}, [f"{error}: how much waits is not known"]
    found = [
        Backlog(queue, waiting.get(queue), parked[queue], candidates[queue], _most(settings, queue))
        for queue in queues
    ]
    if most := _most(settings, settings.quarantine_queue):
        found.append(Backlog(settings.quarantine_queue, quarantined, 0, 0, most))
    return found, unread


def _most(settings: Settings, queue: str) -> int | None:
    limit = limit_of(settings, queue)
    return limit.most if limit else None
