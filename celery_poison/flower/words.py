"""How facts are worded on pages. Everything that was stored passes through :func:`say` first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any

from kombu.utils.json import dumps

from celery_poison.basics.text import clean, count_of, duration, size, span, when
from celery_poison.basics.text import short as short_id
from celery_poison.causes import FAILURE, NO_CONVICTIONS, describe, place_in, short
from celery_poison.desk.sentences import starts_of
from celery_poison.model import MessageRecord

STATES = {
    "NDLV": "in quarantine",
    "FAIL": "given up",
    "TBDL": "waiting",
    "DLNG": "running",
    "DLVD": "ended",
}
#: Characters of a stored text that are shown, and of a value of a header or property.
_LONGEST, _LONGEST_VALUE = 200, 2000


def say(text: object, limit: int = _LONGEST) -> str:
    """Return printable text of at most ``limit`` characters on one line; it is escaped by the template."""
    whole = text if isinstance(text, str) else str(text)
    shown = clean(whole[:limit])
    return shown if len(whole) <= limit else f"{shown}… ({len(whole):,} characters)"


def tell(value: Any) -> str:
    return say(value if isinstance(value, str) else dumps(value), _LONGEST_VALUE)


def ago(seconds: float | None, now: float | None = None) -> str:
    """Return how long ago a moment was, e.g. ``5m``."""
    return duration((time.time() if now is None else now) - seconds) if seconds else "–"


def cause(record: Any) -> str:
    """Return in plain language what a message or a group of them died of."""
    return say(describe(record.cause)) if record.cause else "–"


def short_cause(record: Any) -> str:
    """Return the same in a word, e.g. ``SIGSEGV``."""
    return say(short(record.cause)) or "–"


def own_reason(record: MessageRecord) -> str:
    """Return why a message is in quarantine where its cause does not say that."""
    return "" if describe(record.cause) in record.reason else say(record.reason)


def state(record: MessageRecord) -> str:
    name = STATES.get(record.state, record.state)
    if record.state == "DLNG" and record.candidate:
        return "on trial"
    if record.state == "TBDL" and record.candidate:
        return "released" if record.probation else "candidate"
    return record.resolution or name if record.state == "FAIL" else name


def came_back(record: Any) -> str:
    """Return what a released message, or a group of them, in quarantine again has done: not each has died."""
    if record.cause == FAILURE:
        return "failed again"
    return "came back" if record.cause in NO_CONVICTIONS else "died again"


def kept_for(group: Any, raised: Mapping[str, str]) -> str:
    """Return in a word what a group of messages died of, or the exception that it is kept for."""
    exception = raised.get(group.group, "")
    return f"{FAILURE}: {say(exception, 80)}" if exception else short_cause(group)


def docs() -> str:
    """Return the address of the documentation, as the installed package declares it; empty: it does not."""
    with suppress(metadata.PackageNotFoundError):
        for each in metadata.metadata("celery-poison").get_all("Project-URL") or ():
            name, _, address = each.partition(", ")
            if name == "Documentation":
                return str(address)
    return ""


def zone() -> str:
    """Return the time zone of every moment that is shown: that of this process."""
    return time.strftime("%Z")


def attempts(record: MessageRecord) -> str:
    died = f", {count_of(record.crashes, 'death')}" if record.crashes else ""
    back = f", put back {record.failures}×" if record.failures else ""
    return f"{count_of(starts_of(record), 'start')}{died}{back}"


def node(worker: str) -> str:
    return say(worker.partition("/")[0]) or "–"


def at(entry: Mapping[str, str]) -> float:
    """Return when a journal entry was written, in seconds."""
    return int(entry["at"].partition("-")[0]) / 1000


#: What templates may call.
NAMES: dict[str, Any] = {
    "say": say,
    "short_id": lambda id: say(short_id(id)),
    "tell": tell,
    "ago": ago,
    "cause": cause,
    "short_cause": short_cause,
    "own_reason": own_reason,
    "came_back": came_back,
    "kept_for": kept_for,
    "place_of": lambda record: say(place_in(record.evidence.source)),
    "docs": docs,
    "zone": zone,
    "state_of": state,
    "attempts": attempts,
    "node": node,
    "size": size,
    "when": when,
    "count_of": count_of,
    "duration": duration,
    "in_words": span,
}
