"""Reads what a worker received, and of whose task it knows nothing (TP1-4, row 9)."""

from __future__ import annotations

from typing import Any

from celery_poison.broker.capture import Outgoing
from celery_poison.headers import OUTBOX
from celery_poison.quarantine.stored_message import Identity, original


def told_of(message: Any, identity: Identity, queue: str) -> tuple[Outgoing, int | None]:
    """Return a message, and its number in the outbox; None: it does not come from there."""
    seq, kept = message.headers.get(OUTBOX), original(message)
    outgoing = Outgoing(
        task=identity.task,
        id=identity.id,
        mid=identity.mid,
        exchange="",
        routing_key=queue,
        declare="",
        body=kept.body,
        content_type=kept.content_type,
        content_encoding=kept.content_encoding,
        headers=kept.headers,
        properties=kept.properties,
    )
    # Nor a bool: whatever its publisher has written there.
    return outgoing, seq if type(seq) is int else None
