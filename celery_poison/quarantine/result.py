"""Failing a message for good: whoever waits for it hears of it, through the result backend (SAP-7)."""

from __future__ import annotations

import json
from typing import Any

from celery import Celery
from celery.app.task import Context

from celery_poison.errors import IllegalTransition
from celery_poison.records import MessageRecord, Parcel


class GivenUp(Exception):
    """The result of a task whose message a person gave up."""


def store_failure(app: Celery, record: MessageRecord, parcel: Parcel, note: str) -> None:
    """Store FAILURE for the task, and resolve its chord, its chain and its errbacks.

    Raises:
        IllegalTransition: the body is not JSON, so that only a worker may read what depends on it.
    """
    request = Context({**parcel.headers, **_embedded(parcel), "delivery_info": {}})
    request.update(
        reply_to=parcel.properties.get("reply_to"), correlation_id=parcel.properties.get("correlation_id")
    )
    error = GivenUp(f"given up in quarantine: {record.story}" + (f" ({note})" if note else ""))
    app.finalize()
    backend = app.tasks[record.task].backend if record.task in app.tasks else app.backend
    backend.mark_as_failure(record.id, error, request=request, store_result=True, call_errbacks=True)


def _embedded(parcel: Parcel) -> dict[str, Any]:
    if parcel.content_type != "application/json":
        raise IllegalTransition(
            f"its body is {parcel.content_type}, which is never decoded outside a worker:"
            " release it, or discard it"
        )
    body = parcel.body
    compression = parcel.headers.get("compression")
    if compression:
        from kombu.compression import decompress

        body = decompress(body, compression)
    try:
        args, kwargs, embed = json.loads(body)
    except (ValueError, TypeError):
        return {}  # nobody can be told what a broken body says; the result is stored all the same
    return {**(embed or {}), "args": args, "kwargs": kwargs}
