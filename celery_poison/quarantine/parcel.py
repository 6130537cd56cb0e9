"""The original message, byte for byte: how it is stored and published again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kombu.utils import json as kombu_json

from celery_poison.model import Parcel
from celery_poison.quarantine.fingerprint import original_of


def parcel_fields(message: Any, fingerprint: str = "") -> dict[str, str | bytes | int]:
    """Return the fields that keep ``message`` in the ledger, as it was received."""
    body, headers = original_of(message)
    return {
        **_canvas_fields(message),
        "body": body,
        "content_type": message.content_type or "",
        "content_encoding": message.content_encoding or "",
        "headers": kombu_json.dumps(headers),
        "properties": kombu_json.dumps(_bare(message.properties)),
        "fingerprint": fingerprint,
    }


#: What ``fail`` must know of a body: who waits for the task beside its caller.
CANVAS = ("chord", "chain", "errbacks")
#: RabbitMQ's transport repeats these among the properties.
_REPEATED = ("application_headers", "content_type", "content_encoding")


def _bare(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name not in _REPEATED}


def _canvas_fields(message: Any) -> dict[str, str]:
    """Keep the canvas of a body that only a worker may decode, if this worker has done so already."""
    decoded = getattr(message, "_decoded_cache", None)
    if message.content_type == "application/json" or not decoded:
        return {}
    with suppress(Exception):  # objects that only pickle knows: then ``fail`` asks for force
        embed = decoded[2] or {}
        return {"canvas": kombu_json.dumps({name: embed.get(name) for name in CANVAS})}
    return {}


def canvas_of(raw: Mapping[str, bytes]) -> dict[str, Any] | None:
    """Return the canvas that a worker kept beside the body, or None where none was kept."""
    kept = raw.get("canvas")
    return dict(json.loads(kept)) if kept else None


def pack(fields: Mapping[str, str | bytes | int]) -> bytes:
    """Return the fields of :func:`parcel_fields` as one value."""
    body = fields["body"]
    assert isinstance(body, bytes)
    told = {name: value for name, value in fields.items() if name != "body"}
    return json.dumps(told).encode() + b"\n" + body


def unpack(packed: bytes) -> dict[str, bytes]:
    """Undo :func:`pack`."""
    told, _, body = packed.partition(b"\n")
    return {**{name: str(value).encode() for name, value in json.loads(told).items()}, "body": body}


def parcel_of(raw: Mapping[str, bytes]) -> Parcel:
    """Return the original message from a ``message`` hash."""
    return Parcel(
        body=raw["body"],
        content_type=raw["content_type"].decode(),
        content_encoding=raw["content_encoding"].decode(),
        headers=kombu_json.loads(raw["headers"]),
        properties=kombu_json.loads(raw["properties"]),
    )
