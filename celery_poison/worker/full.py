"""What a worker does where the ledger has no room for messages that must wait: they stay with the broker."""

from __future__ import annotations

import time

from celery.utils.log import get_logger

from celery_poison.errors import LedgerFull
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

logger = get_logger("celery_poison")

#: Seconds after which it asks again, and between two warnings of one process.
AGAIN, WARN_EVERY = 2.0, 60.0

_warned_at = [float("-inf")]


def most_parked(site: Site) -> int:
    """Return how many bytes parked messages may take."""
    return site.ledger.memory.at_most(site.settings.park_bytes)


def ask_again(error: LedgerFull) -> Retry:
    """Return the retry by which a message is held for a while; log that once a minute."""
    now = time.monotonic()
    if now - _warned_at[0] >= WARN_EVERY:
        _warned_at[0] = now
        logger.warning("celery_poison: messages that must wait stay with the broker: %s", error)
    return Retry(AGAIN)
