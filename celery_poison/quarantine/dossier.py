"""Everything that is known about one message, as ``show`` and Flower's page tell it."""

from __future__ import annotations

from celery_poison.errors import MessageNotFound
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine.quarantine import Quarantine
from celery_poison.states import State

Entries = list[dict[str, str]]

COUNTS = ("deliveries", "crashes", "strikes", "failures")


def find(quarantine: Quarantine, id: str) -> tuple[MessageRecord, Entries]:
    """Return what is on record, else what the journal remembers of a message that has ended since.

    Raises:
        MessageNotFound: neither knows it.
    """
    try:
        record = quarantine.get(id)
        return record, quarantine.history(record.mid if record.quarantined_at else record.id)
    except MessageNotFound:
        history = quarantine.history(id)
        if not history:
            raise
        return _remembered(history), history


def parcel_if_kept(quarantine: Quarantine, record: MessageRecord) -> StoredMessage | None:
    """Return the original message, if it lies here and not with the broker."""
    return quarantine.message(record.mid) if record.state in (State.NDLV, State.FAIL) else None


def _remembered(history: Entries) -> MessageRecord:
    """Return what the last journal entry says about a message of which no record is left."""
    last = history[-1]
    names = ("id", "mid", "task", "queue", "cause", "worker", "incident")
    return MessageRecord.from_hash({name: last[name] for name in (*names, *COUNTS)}, State(last["state"]))
