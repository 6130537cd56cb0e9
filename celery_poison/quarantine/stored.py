"""The original message, byte for byte: how it is kept, and how it is published again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kombu.utils import json as kombu_json

from celery_poison.broker.publish import NoAnswer, NotPublished, Publisher
from celery_poison.errors import PoisonError
from celery_poison.headers import EDITED, MARK, PARK, RELEASE, TRIAL
from celery_poison.model import StoredMessage
from celery_poison.quarantine.fingerprint import original_of

#: What ``fail`` must know of a body: who waits for the task beside its caller.
CANVAS = ("chord", "chain", "errbacks")
#: RabbitMQ's transport repeats these among the properties.
_REPEATED = ("application_headers", "content_type", "content_encoding")


def original(message: Any) -> StoredMessage:
    """Return a message as it was received."""
    body, headers = original_of(message)
    return StoredMessage(
        body=body,
        content_type=message.content_type or "",
        content_encoding=message.content_encoding or "",
        headers=headers,
        properties=_bare(message.properties),
    )


def stored_fields(message: Any, fingerprint: str = "", arguments: str = "") -> dict[str, str | bytes | int]:
    """Return the fields that keep ``message`` in the ledger, as it was received."""
    return {**_canvas_fields(message), **fields_of(original(message), fingerprint, arguments)}


def fields_of(kept: StoredMessage, fingerprint: str, arguments: str) -> dict[str, str | bytes | int]:
    """Return the fields that keep an original which nobody else has to decode."""
    edited_from = kept.headers.get(EDITED)
    return {
        # Anybody may send any header, and half a surrogate pair is nothing that Redis takes.
        **({"edited_from": edited_from.encode("utf-8", "replace")} if isinstance(edited_from, str) else {}),
        "body": kept.body,
        "content_type": kept.content_type,
        "content_encoding": kept.content_encoding,
        "headers": kombu_json.dumps(kept.headers),
        "properties": kombu_json.dumps(kept.properties),
        "fingerprint": fingerprint,
        "arguments": arguments,
    }


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
    """Return the fields of :func:`stored_fields` as one value."""
    body = fields["body"]
    assert isinstance(body, bytes)
    rest = {name: value for name, value in fields.items() if name != "body"}
    return json.dumps(rest).encode() + b"\n" + body


def unpack(packed: bytes) -> dict[str, bytes]:
    """Undo :func:`pack`."""
    rest, _, body = packed.partition(b"\n")
    return {**{name: str(value).encode() for name, value in json.loads(rest).items()}, "body": body}


def stored_message(raw: Mapping[str, bytes]) -> StoredMessage:
    """Return the original message from a ``message`` hash."""
    return StoredMessage(
        body=raw["body"],
        content_type=raw["content_type"].decode(),
        content_encoding=raw["content_encoding"].decode(),
        headers=kombu_json.loads(raw["headers"]),
        properties=kombu_json.loads(raw["properties"]),
    )


class PublishRefused(PoisonError):
    """The broker did not take the message; it stays in quarantine."""


def sent_to(stored: StoredMessage, queue: str) -> StoredMessage:
    """Return the same message for another queue.

    On Redis a message carries its own address, by which it is put back and retried; RabbitMQ writes that.
    """
    address = stored.properties.get("delivery_info")
    if address is None:
        return stored
    address = {**address, "exchange": "", "routing_key": queue}
    return replace(stored, properties={**stored.properties, "delivery_info": address})


def publish_release(publisher: Publisher, stored: StoredMessage, queue: str, release: int) -> None:
    """Publish the original with the headers of others as they were, and the number of its release.

    Raises:
        PublishRefused: the queue does not exist, or the broker is away or refuses.
    """
    foreign = {name: value for name, value in stored.headers.items() if name not in (MARK, PARK, TRIAL)}
    try:
        publisher.publish(stored, queue, {**foreign, RELEASE: release})
    except NoAnswer as error:
        raise PublishRefused(
            f"{error}. If it has the message all the same, the first worker that receives it completes this"
            " release"
        ) from error
    except NotPublished as error:
        raise PublishRefused(str(error)) from error
