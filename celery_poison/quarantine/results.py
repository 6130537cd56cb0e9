"""Failing a message for good: whoever waits for it hears of it, through the result backend (SAP-7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery, states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from kombu.exceptions import KombuError

from celery_poison.errors import GivenUp, IllegalTransition, PoisonError
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.quarantine.body import BodyBroken, BodyRefused, json_of
from celery_poison.quarantine.stored import CANVAS


class ResultRefused(PoisonError):
    """The result backend, or the broker for an errback, is away; the message stays in quarantine."""


def store_failure(
    app: Celery,
    record: MessageRecord,
    stored: StoredMessage,
    canvas: Mapping[str, Any] | None,
    *,
    note: str = "",
    force: bool = False,
) -> None:
    """Store FAILURE for the task, and resolve its chord, its chain and its errbacks, as a worker would.

    As there, an errback that takes ``(request, exc, traceback)`` is called here and now, every other is
    sent to a worker.

    Args:
        canvas: what a worker kept of a body that only workers may decode.
        force: where nobody knows the canvas, tell the task's own caller only.

    Raises:
        IllegalTransition: the task's result is SUCCESS already, or its canvas cannot be known here.
        ResultRefused: the result backend is away or refuses, or the broker does with an errback. What was
            told before that stays told: failing the message again tells it again.
    """
    known = _canvas(stored, canvas, force)
    task = app.tasks.get(record.task)
    backend = task.backend if task is not None else app.backend
    request = _request(record, stored, known)
    ignored = request.ignore_result or (task is not None and task.ignore_result)
    stores = not ignored or bool(task is not None and task.store_errors_even_if_ignored)
    errors = (*getattr(backend, "connection_errors", ()), *getattr(backend, "channel_errors", ()))
    error = GivenUp(f"given up in quarantine: {record.story}" + (f" ({note})" if note else ""))
    try:
        _refuse_success(backend, record.id)
        backend.mark_as_failure(record.id, error, request=request, store_result=stores, call_errbacks=True)
    except (OSError, KombuError, *errors) as refusal:
        sentence = f"the failure could not be stored, or an errback not be sent: {refusal}"
        raise ResultRefused(sentence) from refusal


def _refuse_success(backend: Any, id: str) -> None:
    # Of rpc:// results lie in the caller's own queue: nobody else can ask for them.
    is_readable = not isinstance(backend, DisabledBackend) and not backend.as_uri().startswith("rpc://")
    if is_readable and backend._get_task_meta_for(id)["status"] == states.SUCCESS:
        raise IllegalTransition("its result is SUCCESS already, so nobody waits for it: discard it instead")


def _canvas(stored: StoredMessage, kept: Mapping[str, Any] | None, force: bool) -> dict[str, Any]:
    """Return who waits beside the caller: from the body if it may be read here, else as it was kept."""
    if kept is not None:
        return dict(kept)
    try:
        return canvas_in(stored)
    except (BodyBroken, ValueError, TypeError, AttributeError):
        return {}  # no worker could read it either: its result is all that can be told
    except BodyRefused as refusal:
        if force:
            return {}
        raise IllegalTransition(
            f"{refusal}, so that its chord, chain and errbacks are unknown: release it, discard it, or use"
            " force to fail the task alone"
        ) from None


def canvas_in(stored: StoredMessage) -> dict[str, Any]:
    """Return who waits for a task beside its caller, as its body says.

    Raises:
        BodyRefused, BodyBroken, ValueError, TypeError, AttributeError: the body does not tell it here.
    """
    _, _, embed = json_of(stored)
    return {name: (embed or {}).get(name) for name in CANVAS}


def _request(record: MessageRecord, stored: StoredMessage, canvas: Mapping[str, Any]) -> Context:
    """Return what Celery's backends want to know of the task."""
    properties = stored.properties
    return Context(
        {
            **stored.headers,
            **canvas,
            "id": record.id,
            "delivery_info": {},
            "reply_to": properties.get("reply_to"),
            "correlation_id": properties.get("correlation_id"),
        }
    )
