"""Messages whose callers are to be told, by their mids: since when, in seconds since 1970.

Everything here raises ``LedgerUnavailable`` when Redis is away or refuses.
"""

from __future__ import annotations

import time
from typing import Any

from celery_poison.basics.numbers import moment
from celery_poison.basics.text import decoded
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors


def owe(ledger: Ledger, mid: str) -> None:
    """Write down that the caller of a message is to be told."""
    with clear_errors("writing down that a caller gets a failure"):
        ledger.client.zadd(ledger.keys.telling, {mid: time.time()})


def cross_off(ledger: Ledger, mid: str) -> None:
    """Forget it: it is under way, or is not to be told."""
    with clear_errors("crossing off a caller"):
        ledger.client.zrem(ledger.keys.telling, mid)


def owed(ledger: Ledger, most: int = 100) -> dict[str, float]:
    """Return the mids whose notices have been owed longest, each with the time since when."""
    with clear_errors("reading which callers get a failure"):
        rows: Any = ledger.client.zrange(ledger.keys.telling, 0, most - 1, withscores=True)
    return {decoded(mid): moment(since) for mid, since in rows}
