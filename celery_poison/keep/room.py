"""Makes room in a full quarantine (MSG-5), and warns early that a queue, or the quarantine, fills up (MSG-7).

What brings a message to the quarantine keeps that below its limit; ``extensions.limits`` does so for queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from celery.utils.log import get_logger

from celery_poison import causes, signals
from celery_poison.basics.calling import within
from celery_poison.basics.text import clean
from celery_poison.errors import OVERTAKEN, LedgerUnavailable
from celery_poison.extension import Extensions
from celery_poison.ledger import Ledger
from celery_poison.ledger.scripts import Code
from celery_poison.rules.limits import limit_of
from celery_poison.settings import Settings
from celery_poison.states import Event

logger = get_logger("celery_poison")

#: The actor of discards in the journal, and messages that quarantine gives up at once at most.
ACTOR, DISCARDED_AT_ONCE = "poison_max_messages", 100
#: Seconds between two warnings of one queue, and between two looks of one process whether another has warned.
WARN_EVERY, LOOK_EVERY = 600.0, 60.0
#: What plain Celery would have dropped: of these alone it may be said that there is no room.
REFUSABLE = frozenset({causes.FAILURE}) | causes.UNPROCESSABLE


class Room:
    """How much room there is in one app's quarantine; everything here waits for Redis."""

    def __init__(self, settings: Settings, ledger: Ledger, extensions: Extensions) -> None:
        self._limit = limit_of(settings, settings.quarantine_queue)
        self._name = settings.quarantine_queue
        self._filling = Filling(lambda: ledger)
        self._ledger = ledger
        self._queries = ledger.read
        self._extensions = extensions

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
        note = "the oldest in quarantine made room for a new one"
        for mid in self._queries.longest_kept(min(over, DISCARDED_AT_ONCE)):
            record = self._queries.record(mid)
            if record is None or record.destination or record.retry_at:
                continue
            with suppress(*OVERTAKEN):
                about = self._ledger, record, self._queries.message, note
                with (
                    self._ledger.decisions.reserving(mid, "discard", ACTOR, note) as number,
                    within(hook(*about) for hook in self._extensions.discarding),
                ):
                    self._ledger.decisions.give_up(mid, Event.DISCARDED, ACTOR, note, number)
                logger.warning(
                    "celery_poison: Task %s[%s] was discarded: %s", clean(record.task), clean(record.id), note
                )


class Filling:
    """Warns early that a queue fills up: in the log, in the journal, and by a signal (MSG-7).

    It knows the warnings of its process; the ledger knows those of all others.
    """

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._looked_at: dict[str, float] = {}

    def __call__(self, queue: str, waiting: int, limit: int) -> None:
        """Warn of a queue, unless any process did so in the last ten minutes."""
        now = time.monotonic()
        if now - self._looked_at.get(queue, -LOOK_EVERY) < LOOK_EVERY:
            return
        self._looked_at[queue] = now
        story = f"{waiting} messages wait, its limit is {limit}"
        try:
            words = {"queue": queue, "note": story, "quiet_ms": int(WARN_EVERY * 1000)}
            if self._ledger().scripts.call("queue_filling", **words)[0] is not Code.OK:
                return
        except LedgerUnavailable as error:
            logger.debug(
                "celery_poison: the warning that queue %s fills up was not recorded: %s", queue, error
            )
        logger.warning("celery_poison: queue %s fills up: %s", queue, story)
        signals.queue_filling.send(sender=None, queue=queue, waiting=waiting, limit=limit)
