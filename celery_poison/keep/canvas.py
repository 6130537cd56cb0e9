"""Who waits for a message beside its caller (its canvas), and the context in which its task is failed."""

from __future__ import annotations

import json
from typing import Any

from celery.app.task import Context

from celery_poison.errors import IllegalTransition
from celery_poison.keep.body import BodyBroken, BodyRefused, json_of
from celery_poison.keep.stored_message import canvas_of
from celery_poison.model import MessageRecord, StoredMessage

#: The task that calls ``on_failure`` and the like in a worker.
FAILED = "celery_poison.failed"


def _canvas(stored: StoredMessage, kept: bytes | None, force: bool) -> dict[str, Any]:
    """Return who waits beside the caller: from the body if it may be read here, else as it was kept."""
    if kept:
        return dict(json.loads(kept))
    try:
        return canvas_in(stored)
    except (BodyBroken, ValueError, TypeError, AttributeError):
        return {}  # no worker could read it either: its result is all that can be stored
    except BodyRefused as refusal:
        if force:
            return {}
        raise IllegalTransition(
            f"{refusal}, so that its chord, chain and errbacks are unknown: release it, discard it, or use"
            " --force to fail the task alone"
        ) from refusal


def canvas_in(stored: StoredMessage) -> dict[str, Any]:
    """Return who waits for a task beside its caller, as its body says.

    Raises:
        BodyRefused, BodyBroken, ValueError, TypeError, AttributeError: the body does not tell it here.
    """
    return canvas_of(json_of(stored))


def context_of(
    record: MessageRecord, stored: StoredMessage, kept: bytes | None, *, force: bool = True
) -> Context:
    """Return what Celery's backends and a task's own code want to know of it.

    Args:
        kept: who waits beside the caller, as a worker has kept it.
        force: what cannot be known of that is left out.

    Raises:
        IllegalTransition: without ``force``: who waits cannot be known here.
    """
    properties = stored.properties
    return Context(
        {
            **stored.headers,
            **_canvas(stored, kept, force),
            "id": record.id,
            "task": record.task,
            "hostname": record.worker.partition("/")[0] or None,
            "delivery_info": {"routing_key": record.queue},
            "reply_to": properties.get("reply_to"),
            "correlation_id": properties.get("correlation_id"),
        }
    )
