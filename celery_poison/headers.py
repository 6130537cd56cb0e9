"""The headers that celery_poison adds to messages, and the identity they give."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from uuid import uuid4
from zlib import crc32

#: Identifies one message; stamped on publish.
MID = "poison_mid"
#: On a released copy: the number of its release.
RELEASE = "poison_release"
#: When it was published, in milliseconds since 1970; not on one that is to wait for a time of its own.
SENT = "poison_sent"
#: On a message that must be looked up although it is delivered for the first time.
MARK = "poison_mark"
#: On a copy that was parked and published again: the number of that parking.
PARK = "poison_park"
#: On a copy in the trial queue: the queue that its message was sent to.
TRIAL = "poison_trial"
#: On a changed copy: the mid of the original.
EDITED = "poison_edited"
#: On a retry whose failures are kept: what the earlier attempts raised (:mod:`celery_poison.rules.failures`).
FAILURES = "poison_failures"
#: On a copy for a named destination: what was known about the message (see ``destinations.TOLD``).
VERDICT = "poison_verdict"
#: On a message that was sent from the outbox: its number there.
OUTBOX = "poison_outbox"

#: On a copy that was parked since a worker did not know its task: when one first did not, in milliseconds.
UNKNOWN_SINCE = "poison_unknown_since"

OURS = (MID, SENT, RELEASE, MARK, PARK, TRIAL, EDITED, FAILURES, VERDICT, OUTBOX, UNKNOWN_SINCE)


#: Characters of an id or a name that are kept.
LONGEST = 255


def known_as(name: object) -> str:
    """Return an id as Redis and people can take it: a publisher may send any.

    Half surrogate pairs, which are good JSON and no UTF-8, are written out. Of what is too long the beginning
    and a hash are left, so that two stay two.
    """
    text = name if isinstance(name, str) else shown(name)
    if not text.isascii():
        text = writable(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 33]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def shown(value: object) -> str:
    """Return ``repr`` of anything that a message may hold; of what is nested too deep its type's name."""
    try:
        return repr(value)
    except RecursionError:
        return type(value).__name__


def writable(text: str) -> str:
    """Return a text with half surrogate pairs written out, as ``\\udcff``: Redis takes only whole ones."""
    return text.encode("utf-8", "backslashreplace").decode()


#: Begins the mid of a message without a stamp: one that its transport tells from every other publish,
_TAGGED = "+"
#: and one that nothing tells from a second publish which is equal to the byte.
_EQUALS = "~"
#: Characters of a mid as :func:`new_mid` makes it: 128 random bits, a dash, and for which message that is.
_STAMPED, _DASH = 41, 32
#: Characters of a tag that are kept.
_TAG = 64
#: Above all that RabbitMQ counts; a publisher may write any number.
_ROUNDS = 10**9


def new_mid(headers: Mapping[str, Any]) -> str:
    """Return a mid for the message that is being published with these headers, and for no other.

    Headers are handed on (``headers=self.request.headers``), also by services that do not know this package:
    a stamp tells for which message it was made.
    """
    return f"{uuid4().hex}-{_purpose(headers)}"


def mid_of(headers: Mapping[str, Any]) -> str:
    """Return the mid of a message that was identified, or published here."""
    stamped = headers.get(MID)
    if isinstance(stamped, str) and stamped:
        return stamped if len(stamped) <= LONGEST and stamped.isascii() else known_as(stamped)
    return known_as(f"{headers['id']}:{headers['task']}:{headers.get('retries') or 0}")


def identify(headers: Mapping[str, Any], tag: Any, body: Any = b"") -> str:
    """Return the mid of a message as it was received: two publishes are two messages, whatever they share.

    Args:
        tag: what the transport gave to this publish alone (Redis); empty where it gives nothing.
        body: tells messages apart that have neither a stamp nor a tag, as far as that can tell.
    """
    stamped = headers.get(MID)
    if isinstance(stamped, str) and stamped and _is_its_own(stamped, headers):
        mid = known_as(stamped)
    elif isinstance(tag, str) and tag:
        mid = f"{_TAGGED}{_purpose(headers)}-{known_as(tag) if len(tag) <= _TAG else _hash(tag)}"
    else:
        words = "".join(f"{_said(headers.get(name))}\n" for name in ("id", "task", "eta"))
        mid = f"{_EQUALS}{_purpose(headers)}-{_hash(words, body)}"
    if "x-death" in headers and RELEASE not in headers and PARK not in headers:
        # Rejected, and back from where its queue sends such messages: a new one, whose last run has ended.
        mid += f"#{_rounds(headers['x-death'])}"
    return mid


def stamp_of(headers: Mapping[str, Any]) -> str:
    """Return the mid that a message was published with, as :func:`identify` would; empty: ask that."""
    stamped = headers.get(MID)
    if type(stamped) is not str or len(stamped) != _STAMPED or not stamped.isascii():
        return ""
    is_sent_once = stamped[_DASH] == "-" and "x-death" not in headers
    return stamped if is_sent_once and stamped.endswith(_purpose(headers)) else ""


def is_unique(mid: str) -> bool:
    """Whether a mid belongs to one publish; else nothing that it did may be held against another delivery."""
    return not mid.startswith(_EQUALS)


def _rounds(deaths: Any) -> int:
    """Return how often RabbitMQ has sent a message to another queue because it was rejected, or expired."""
    try:
        counts = [death["count"] for death in deaths]
    except (TypeError, LookupError):
        return 0
    return sum(count for count in counts if type(count) is int) % _ROUNDS


def _said(value: Any) -> str:
    """Return a header as text; empty where it is neither a word nor a number, which nothing of Celery's is.

    Not ``str`` of anything: an error here would let the message pass unguarded.
    """
    return str(value) if isinstance(value, (str, int)) else ""


def _is_its_own(stamped: str, headers: Mapping[str, Any]) -> bool:
    """Whether a stamp was made for this message, and not handed on from another; a bare name is believed."""
    if len(stamped) == _STAMPED and stamped[_DASH] == "-":
        return stamped.endswith(_purpose(headers))
    return stamped[0] not in _TAGGED + _EQUALS or stamped.startswith(f"{_purpose(headers)}-", 1)


def _purpose(headers: Mapping[str, Any]) -> str:
    """Return eight characters that tell a message from others which have its headers."""
    get = headers.get
    id, task, retries, nesting = get("id"), get("task"), get("retries"), get("replaced_task_nesting")
    # Asked twice for every message, by who publishes it and who receives it: most are as Celery sends them.
    if not (type(id) is type(task) is str and type(retries) is type(nesting) is int):
        id, task, retries, nesting = _said(id), _said(task), _said(retries) or "0", _said(nesting) or "0"
    of = f"{id}\n{task}\n{retries}\n{nesting}"
    return f"{crc32(of.encode('utf-8', 'backslashreplace')):08x}"


def _hash(*parts: object) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part if isinstance(part, bytes) else str(part).encode("utf-8", "backslashreplace"))
    return whole.hexdigest()[:32]
