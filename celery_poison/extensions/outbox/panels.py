"""What an overview says of the outbox: what waits in it, or before it, and what a person must decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from celery_poison.basics.parts import Panel
from celery_poison.basics.text import count_of, some_of
from celery_poison.extensions.outbox.database import waiting_rows
from celery_poison.extensions.outbox.lanes import FAILED, Lanes
from celery_poison.ledger import Ledger


def panels(ledger: Ledger, database: str | None) -> Iterator[Panel]:
    """Yield destinations, rows of the user's own database, and messages that could not be sent.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    outbox = Lanes(ledger)
    lanes, rows = outbox.all(), waiting_rows(database)
    blocked = sorted({lane.queue for lane in lanes if lane.blocked})
    waiting = count_of(sum(lane.waiting for lane in lanes), "message")
    troubled = some_of(sorted({lane.queue for lane in lanes if lane.cause or lane.blocked}))
    trouble = f"; trouble with {troubled}" if troubled else ""
    yield Panel(
        "outbox",
        lanes,
        as_json=[asdict(lane) for lane in lanes],
        line=f"{waiting} wait to be sent{trouble}{f'; {rows}' if rows else ''}" if lanes or rows else "",
        decisions=[f"sending to {some_of(blocked)} is blocked"] if blocked else [],
        typed=["poison outbox status"] if blocked else [],
    )
    yield Panel("outbox_database", rows, as_json=rows and rows._asdict())
    unsent = sum(1 for _ in outbox.messages(FAILED))
    yield Panel(
        "unsent",
        unsent,
        as_json=unsent,
        decisions=[f"{count_of(unsent, 'message')} could not be sent"] if unsent else [],
        typed=["poison outbox list --failed"] if unsent else [],
    )
