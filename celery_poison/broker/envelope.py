"""A stored original as kombu's virtual transports keep it in a queue: Redis, SQS, memory and the like."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from celery_poison.broker.port import Parcel

#: What brokers note on a copy that they deliver again. It was true of that copy, not of the original.
_BROKERS_NOTES = ("redelivered", "x-delivery-count", "x-acquired-count")


def envelope(channel: Any, parcel: Parcel) -> dict[str, Any]:
    """Return the dictionary that a virtual channel puts into a queue."""
    stored, _, headers = parcel
    properties = dict(stored.properties)
    properties["delivery_tag"] = channel._next_delivery_tag()
    info = {**properties.get("delivery_info", {})}
    info.pop("redelivered", None)
    properties["delivery_info"] = info
    packed = str(properties.get("body_encoding") or "").lower() == "base64"
    body = base64.b64encode(stored.body).decode() if packed else to_text(stored.body)
    return {
        "body": body,
        "content-encoding": stored.content_encoding or None,
        "content-type": stored.content_type or None,
        "headers": without_notes(headers),
        "properties": properties,
    }


def without_notes(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers without what a broker noted on the copy that it delivered."""
    return {name: value for name, value in headers.items() if name not in _BROKERS_NOTES}


def to_bytes(text: str) -> bytes:
    """Encode a body that its transport handed over as text; lone surrogates survive the way back."""
    return text.encode("utf-8", "surrogatepass")


def to_text(body: bytes) -> str:
    """Undo :func:`to_bytes`."""
    return body.decode("utf-8", "surrogatepass")
