"""Messages of Celery's task protocol 1 keep in their body what others have in headers: task, id, retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_poison.headers import OURS

#: What is looked for in the body.
_NAMES = ("task", "id", "retries")


def names_of(message: Any) -> Mapping[str, Any]:
    """Return the headers of a message, with what its body has in their place.

    The body of such a message is decoded for that, as Celery does next.
    """
    headers: Mapping[str, Any] = message.headers
    if "task" in headers and "id" in headers:
        return headers
    try:
        body = message.decode()
    except Exception:
        return headers  # Celery finds that, and has its own ways with it
    if not (isinstance(body, dict) and isinstance(body.get("id"), str) and isinstance(body.get("task"), str)):
        return headers
    return {**{name: body[name] for name in _NAMES if name in body}, **headers}


def take_our_headers(request: dict[str, Any], headers: Mapping[str, Any]) -> None:
    """Add our headers to Celery's request of a message of protocol 1, which is made of the body alone."""
    for name in OURS:
        request.pop(name, None)  # the body's own
        if name in headers:
            request[name] = headers[name]
