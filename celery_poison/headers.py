"""The headers that celery_poison adds to messages, and the identity they give."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

#: Identifies one message; stamped on publish.
MID = "poison_mid"
#: On a released copy: the number of its release.
RELEASE = "poison_release"
#: On a message that must be looked up although it is delivered for the first time.
MARK = "poison_mark"
#: On a copy that was parked and published again: the number of that parking.
PARK = "poison_park"
#: On a copy in the trial queue: the queue that its message was sent to.
TRIAL = "poison_trial"
#: On a changed copy: the mid of the original.
EDITED = "poison_edited"
#: On a retry whose failures are kept: what the earlier attempts raised (:mod:`celery_poison.failures`).
FAILURES = "poison_failures"
#: On a copy for a named destination: what was known about the message (see ``destinations.TOLD``).
VERDICT = "poison_verdict"
#: On a message that was sent from the outbox: its number there.
OUTBOX = "poison_outbox"

OURS = (MID, RELEASE, MARK, PARK, TRIAL, EDITED, FAILURES, VERDICT, OUTBOX)


#: Characters of an id or a name that are kept.
LONGEST = 255


def known_as(name: object) -> str:
    """Return an id as Redis and people can take it: anybody may send any.

    Half surrogate pairs, which are good JSON and no UTF-8, are written out. Of what is too long the beginning
    and a hash are left, so that two stay two.
    """
    text = name if isinstance(name, str) else repr(name)
    if not text.isascii():
        text = writable(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 33]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def writable(text: str) -> str:
    """Return a text with half surrogate pairs written out, as ``\\udcff``: Redis takes only whole ones."""
    return text.encode("utf-8", "backslashreplace").decode()


def mid_of(headers: Mapping[str, Any]) -> str:
    """Return the mid of a message: the stamped header, else derived from id, task and retries."""
    stamped = headers.get(MID)
    if isinstance(stamped, str) and stamped:
        return known_as(stamped)
    return known_as(f"{headers['id']}:{headers['task']}:{headers.get('retries') or 0}")
