"""The limit of the quarantine itself: what is not kept there, and what makes room for it (MSG-1, MSG-5)."""

from __future__ import annotations

from contextlib import suppress

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.errors import DecisionPending, IllegalTransition, MessageNotFound, StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.producer.limits import Filling, limit_of
from celery_poison.quarantine.error_transactions import ErrorTransactions
from celery_poison.settings import Settings
from celery_poison.states import Event

logger = get_logger("celery_poison")

#: Who discards, as the journal names it, and messages that are discarded at once at most.
ACTOR, MOST = "poison_max_messages", 100
#: What plain Celery would have dropped: of these alone it may be said that there is no room.
REFUSABLE = frozenset({causes.FAILURE}) | causes.UNPROCESSABLE


class Room:
    """How much room there is in one app's quarantine; everything here waits for Redis."""

    def __init__(self, settings: Settings, ledger: Ledger, errors: ErrorTransactions) -> None:
        self._limit = limit_of(settings, settings.quarantine_queue)
        self._name = settings.quarantine_queue
        self._filling = Filling(lambda: ledger)
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._errors = errors

    def most(self, cause: str, most: int | None = None) -> int | None:
        """Return beyond how many messages one of this cause is not kept; None: it is kept in any case.

        Args:
            most: what is known of that already.
        """
        if self._limit is None or self._limit.discards_old or cause not in REFUSABLE:
            return most
        return self._limit.most if most is None else min(most, self._limit.most)

    def make(self) -> None:
        """Give up what has been in quarantine for longest, as far as there is too much; warn in time (MSG-7).

        It can be restored. What a person is deciding about stays, and what leaves by itself for a destination
        or its own queue.

        Raises:
            LedgerUnavailable: Redis is away; the next one makes room.
        """
        if self._limit is None:
            return
        there = self._queries.totals()["quarantined"]
        if self._limit.is_near(there):
            self._filling(self._name, there, self._limit.most)
        over = there - self._limit.most
        if over <= 0 or not self._limit.discards_old:
            return
        for mid in self._queries.longest_kept(min(over, MOST)):
            with suppress(MessageNotFound, IllegalTransition, DecisionPending, StaleDelivery):
                self._discard(mid)

    def _discard(self, mid: str) -> None:
        record = self._queries.record(mid)
        if record is None or record.destination or record.retry_at:
            return
        note = "the oldest in quarantine made room for a new one"
        number = self._ledger.decide(mid, "discard", ACTOR, note)
        with self._errors.discarding(record, self._queries.message, note):
            self._ledger.give_up(mid, Event.DISCARDED, ACTOR, note, number)
        logger.warning("celery_poison: Task %s[%s] was discarded: %s", record.task, record.id, note)
