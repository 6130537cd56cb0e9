"""What lies in a list of kombu's on Redis: an envelope, or anything that somebody has pushed there."""

from __future__ import annotations

import base64
from typing import Any

from kombu.utils.json import dumps

from celery_poison.broker.sealed import ITEM


def origin_of(payload: Any) -> str:
    """Return the delivery tag that an envelope of kombu's Redis transport was published with; '' for none."""
    properties = payload.get("properties") if isinstance(payload, dict) else None
    tag = properties.get("delivery_tag") if isinstance(properties, dict) else None
    return tag if isinstance(tag, str) else ""


def tagged(payload: Any, tag: str) -> dict[str, Any]:
    """Return an envelope of kombu's Redis transport with a delivery tag of ours.

    Raises:
        ValueError: it is none.
    """
    if isinstance(payload, dict) and isinstance(properties := payload.get("properties"), dict):
        get, has_info = payload.get, isinstance(properties.get("delivery_info"), dict | None)
        body, kind, encoding = get("body") or "", get("content-type") or "", get("content-encoding") or ""
        if has_info and isinstance(body, str) and isinstance(kind, str) and isinstance(encoding, str):
            properties["delivery_tag"] = tag
            return payload
    raise ValueError("kombu writes no such entry to a queue")


def wrapped(item: Any, tag: str) -> dict[str, Any]:
    """Return an envelope, as kombu's Redis transport writes it, around an item of a queue that has none."""
    text = item if isinstance(item, str | bytes) else dumps(item)
    whole = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    properties = {"delivery_tag": tag, "body_encoding": "base64"}
    return {"body": base64.b64encode(whole).decode(), "content-type": ITEM, "properties": properties}
