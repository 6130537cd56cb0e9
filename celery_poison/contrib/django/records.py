"""A record in Django's admin: a row of the list, and the sections of its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from celery_poison import causes
from celery_poison.basics.text import clean, count_of, duration, when
from celery_poison.causes import place_in
from celery_poison.desk import sentences
from celery_poison.desk.edits import call_of
from celery_poison.desk.reading import Detail
from celery_poison.errors import PoisonError
from celery_poison.model import MessageRecord
from celery_poison.states import State

#: Entries of a history, and characters of a value, that are shown.
_ENTRIES, LONGEST = 200, 2000


def row_of(record: MessageRecord, now: float) -> dict[str, Any]:
    since = record.quarantined_at or record.first_seen
    return {
        "mid": record.mid,
        "link": urlencode({"id": record.mid}),
        "id": clean(record.id[:8]),
        "task": clean(record.task),
        "cause": clean(causes.short(record.cause)),
        "place": clean(place_in(record.evidence.source)),
        "queue": clean(record.queue),
        "age": duration(now - since) if since else "",
        "arguments": clean(record.arguments[:120]),
        "standing": record.resolution or ("died again" if record.releases else ""),
    }


def is_editable(detail: Detail) -> bool:
    if detail.stored is None or detail.record.state != State.NDLV:
        return False
    try:
        call_of(detail.stored)
    except PoisonError:
        return False
    return True


def sections_of(detail: Detail) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return title and rows of what is on record, without what is empty."""
    record = detail.record
    own = [frame for frame in record.evidence.stack if causes.is_users(frame)]
    facts = {
        "task id": record.id,
        "arguments": record.arguments,
        "queue": record.queue,
        "counts": f"{count_of(sentences.starts_of(record), 'start')}, {count_of(record.crashes, 'death')}",
        "worker": record.worker.partition("/")[0],
        "size": f"{record.payload_bytes:,} bytes",
        "first seen": when(record.first_seen),
        "quarantined": when(record.quarantined_at),
        "given up": f"{record.resolution} by {record.actor}: {record.note}" if record.resolution else "",
        "changed copy": record.edited_to,
        "stack": " ← ".join(own),
    }
    history = [
        (when(int(entry["at"].partition("-")[0]) / 1000), sentences.sentence(entry))
        for entry in detail.history[-_ENTRIES:]
    ]
    headers = {n: v for n, v in detail.headers.items() if n not in ("argsrepr", "kwargsrepr")}
    sections = [
        ("On record", [*facts.items()]),
        *sentences.failure_rows(detail.failure),
        ("History", history),
        ("Headers", sorted(headers.items())),
        ("Properties", sorted(detail.properties.items())),
    ]
    return [(title, rows) for title, pairs in sections if (rows := _cleaned(pairs))]


def _cleaned(pairs: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    rows = ((clean(name), value) for name, value in pairs if value not in ("", "-", None))
    return [(name, clean(str(value)[:LONGEST])) for name, value in rows]
