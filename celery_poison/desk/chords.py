"""The chord that waits for a message, and whether it can still be resolved.

A chord counts its members, and keeps their results, in the result backend, for ``result_expires``. A member
that a person releases later runs well, and the chord's body never does, without a word of Celery.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from celery import Celery

from celery_poison.basics.text import clean
from celery_poison.errors import IllegalTransition
from celery_poison.headers import SENT
from celery_poison.keep.body import BodyBroken, BodyRefused
from celery_poison.keep.canvas import canvas_in
from celery_poison.model import MessageRecord, StoredMessage


def chord_of(stored: StoredMessage, kept: bytes | None = None) -> str:
    """Return the task of the chord that waits for a message; empty: none does, or it cannot be known here.

    Args:
        kept: who waits beside the caller, as a worker has kept it.
    """
    with suppress(BodyBroken, BodyRefused, ValueError, TypeError, AttributeError, LookupError):
        canvas: Mapping[str, Any] = json.loads(kept) if kept else canvas_in(stored)
        if isinstance(chord := canvas.get("chord"), dict):
            return clean(str(chord["task"]))
    return ""


def has_expired_chord(app: Celery, record: MessageRecord, stored: StoredMessage) -> bool:
    """Whether the results of a chord's other members may have expired, for the age of the message."""
    lasts, sent = app.conf.result_expires, stored.headers.get(SENT)
    seconds = lasts.total_seconds() if isinstance(lasts, timedelta) else lasts
    since = sent / 1000 if isinstance(sent, int) else record.first_seen or record.quarantined_at
    return bool(seconds and since) and time.time() - float(since or 0.0) > float(seconds)


def refuse_expired_chord(
    app: Celery, record: MessageRecord, raw: Mapping[str, bytes], stored: StoredMessage
) -> None:
    """Refuse a release after which a chord's body would not run.

    Raises:
        IllegalTransition: see there.
    """
    if not has_expired_chord(app, record, stored):
        return
    if chord := chord_of(stored, raw.get("canvas")):
        raise IllegalTransition(
            "it is older than result_expires: the chord that waits for it may have lost its results, and"
            f" its body {chord} would not run. Send the body by hand from results that you have; --force"
            " (force=True in Python, the tick in Flower) runs this message alone"
        )
