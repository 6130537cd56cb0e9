"""Warns early that a queue fills up: in the log, in the journal, and by a signal (MSG-7)."""

from __future__ import annotations

import time
from collections.abc import Callable

from celery.utils.log import get_logger

from celery_poison import signals
from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger

logger = get_logger("celery_poison")

#: Seconds between two warnings of one queue, and between two looks of one process whether another has warned.
QUIET, LOOK = 600.0, 60.0


class Filling:
    """The warnings of one process; the ledger knows those of all others."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._looked_at: dict[str, float] = {}

    def __call__(self, queue: str, waiting: int, limit: int) -> None:
        """Warn of a queue, unless somebody did so in the last ten minutes."""
        now = time.monotonic()
        if now - self._looked_at.get(queue, -LOOK) < LOOK:
            return
        self._looked_at[queue] = now
        said = f"{waiting} messages wait, its limit is {limit}"
        try:
            if not self._ledger().queue_filling(queue, said, int(QUIET * 1000)):
                return
        except LedgerUnavailable as error:
            logger.debug("celery_poison: nobody else knows that queue %s fills up: %s", queue, error)
        logger.warning("celery_poison: queue %s fills up: %s", queue, said)
        signals.queue_filling.send(sender=None, queue=queue, waiting=waiting, limit=limit)
