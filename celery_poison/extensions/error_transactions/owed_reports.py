"""Error transactions that are owed, and what a start leaves for one (TP1-3).

Everything here raises ``LedgerUnavailable`` when Redis is away or refuses.
"""

from __future__ import annotations

from typing import Any, cast

from celery_poison.basics.text import decoded
from celery_poison.ledger.connection import Namespace, clear_errors


def owe(ledger: Namespace, id: str, report: str) -> None:
    """Write down a report that is to be sent, as JSON, by its id."""
    with clear_errors("writing down an error transaction"):
        ledger.client.hset(ledger.keys.owed, id, report)


def cross_off(ledger: Namespace, id: str) -> None:
    """Forget a report that is sent, or is not to be sent."""
    with clear_errors("crossing off an error transaction"):
        ledger.client.hdel(ledger.keys.owed, id)


def owed_reports(ledger: Namespace, count: int) -> dict[str, bytes]:
    """Return some of the reports that are owed, about ``count``: id -> JSON."""
    with clear_errors("reading the error transactions that are owed"):
        _, rows = cast(Any, ledger.client.hscan(ledger.keys.owed, count=count))
    return {decoded(id): report for id, report in rows.items()}


def attempt_rows(ledger: Namespace, token: str) -> list[bytes]:
    """Return the message of a start, and those that it would have sent, as JSON; [] if none is on record."""
    with clear_errors("reading an attempt"):
        return [*cast(Any, ledger.client.lrange(ledger.keys.attempt(token), 0, -1))]


def forget_attempt(ledger: Namespace, token: str) -> None:
    """Delete what a start has left for an error transaction."""
    with clear_errors("forgetting an attempt"):
        ledger.client.delete(ledger.keys.attempt(token))
