"""The original message, byte for byte: how it is kept, and how it is published again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kombu.utils import json as kombu_json

from celery_poison.basics.text import decoded
from celery_poison.broker.capture import read_json
from celery_poison.broker.port import NoAnswer, NotPublished, Parcel
from celery_poison.broker.publish import Publisher
from celery_poison.broker.sealed import ITEM
from celery_poison.errors import PoisonError
from celery_poison.headers import (
    EDITED,
    FAILURES,
    MARK,
    OURS,
    PARK,
    RELEASE,
    TRIAL,
    UNKNOWN_SINCE,
    identify,
    shown,
)
from celery_poison.keep.arguments import original_of
from celery_poison.model import MessageRecord, StoredMessage
from celery_poison.rules.failures import KeptFailure, carried_by_release

#: What ``fail`` must know of a body: who waits for the task beside its caller.
CANVAS = ("chord", "chain", "errbacks")
#: The same of a body of protocol 1, which also holds what others have in headers.
_CANVAS_1 = ("chord", "errbacks", "group", "group_index")
#: Characters of an id or a name that is taken for one.
_WORD = 255
#: Headers that a copy may have and its original had not.
_NOT_OF_THE_ORIGINAL = (*OURS, "redelivered", "x-delivery-count", "x-acquired-count")
#: Headers that a released copy has no more.
_OF_ONE_COPY = (MARK, PARK, TRIAL, UNKNOWN_SINCE)
#: What is packed of a message beside its body.
_PACKED = ("content_type", "content_encoding", "headers", "properties")
#: Celery's header of the time after which workers discard a message, and RabbitMQ's time to live.
EXPIRES, TTL = "expires", "expiration"
#: Encodings of JSON that every process reads.
_PLAIN = ("utf-8", "ascii", "us-ascii")
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
        properties={name: each for name, each in message.properties.items() if name not in _REPEATED},
    )


def stored_fields(message: Any, fingerprint: str = "", arguments: str = "") -> dict[str, str | bytes | int]:
    """Return the fields that keep ``message`` in the ledger, as it was received."""
    return {**_canvas_fields(message), **fields_of(original(message), fingerprint, arguments)}


def fields_of(kept: StoredMessage, fingerprint: str, arguments: str) -> dict[str, str | bytes | int]:
    """Return the fields that keep an original, which no other code has to decode."""
    edited_from = kept.headers.get(EDITED)
    return {
        # A publisher may send any header, and half a surrogate pair is nothing that Redis takes.
        **({"edited_from": edited_from.encode("utf-8", "replace")} if isinstance(edited_from, str) else {}),
        "body": kept.body,
        "content_type": kept.content_type,
        "content_encoding": kept.content_encoding,
        "headers": kombu_json.dumps(kept.headers),
        "properties": kombu_json.dumps(kept.properties),
        "fingerprint": fingerprint,
        "arguments": arguments,
    }


class Identity(NamedTuple):
    """How quarantine calls a message that may be anything; ``task`` is empty where it names none.

    Attributes:
        by_content: it has no id that could be one, and is known by what it says: equal ones have the same.
    """

    id: str
    mid: str
    task: str
    by_content: bool


def identity_of(message: Any) -> Identity:
    """Return the ids of a message, whatever is in its headers.

    Raises:
        Exception: it cannot even be kept.
    """
    kept, decoded = original(message), getattr(message, "_decoded_cache", None)
    headers = kept.headers
    fields = headers if "task" in headers or not isinstance(decoded, dict) else decoded  # protocol 1
    id, task = word(fields.get("id")), word(fields.get("task"))
    if id:
        names = {**headers, "id": id, "task": task, "retries": fields.get("retries")}
        mid = identify(names, getattr(message, "origin", ""), kept.body)
        return Identity(
            id, mid if word(mid) else f"{id}:{_hash(mid.encode('utf-8', 'replace'))}", task, False
        )
    foreign = {name: value for name, value in headers.items() if name not in _NOT_OF_THE_ORIGINAL}
    identifying = [kept.content_type, kept.content_encoding, foreign, kept.properties.get("correlation_id")]
    name = "raw-" + _hash(kept.body + shown(identifying).encode("utf-8", "replace"))
    return Identity(name, name, task, True)


def word(value: Any) -> str:
    """Return a short printable text as it is; the empty string for anything else."""
    good = isinstance(value, str) and len(value) <= _WORD and value.isprintable()
    return value if good else ""


def _hash(material: bytes) -> str:
    return hashlib.sha256(material).hexdigest()[:32]


def _canvas_fields(message: Any) -> dict[str, str]:
    """Keep the canvas of a body that only a worker may decode, if this worker has done so already.

    Any compression counts: kombu has more methods than are unpacked elsewhere, and an app may add its own.
    """
    decoded = getattr(message, "_decoded_cache", None)
    is_packed = message.headers.get("compression") or (message.content_encoding or "utf-8") not in _PLAIN
    if not decoded or (message.content_type == "application/json" and not is_packed):
        return {}
    with suppress(Exception):  # objects that only pickle knows: then ``fail`` asks for force
        return {"canvas": kombu_json.dumps(canvas_of(decoded))}
    return {}


def canvas_of(body: Any) -> dict[str, Any]:
    """Return who waits for a task beside its caller, as its decoded body says.

    Raises:
        TypeError, ValueError, AttributeError: it is no task's body.
    """
    if isinstance(body, dict):
        return {name: body.get(name) for name in _CANVAS_1}
    _, _, embed = body
    return {name: (embed or {}).get(name) for name in CANVAS}


def pack(stored: StoredMessage) -> bytes:
    """Return a message as one value."""
    rest = {name: value for name, value in fields_of(stored, "", "").items() if name in _PACKED}
    return json.dumps(rest).encode() + b"\n" + stored.body


def unpack(packed: bytes) -> StoredMessage:
    """Undo :func:`pack`."""
    rest, _, body = packed.partition(b"\n")
    known = json.loads(rest)
    return stored_message({**{name: known[name].encode() for name in _PACKED}, "body": body})


class RecordBroken(PoisonError):
    """What Redis holds of a message is not what was put there."""


def stored_message(raw: Mapping[str, bytes]) -> StoredMessage:
    """Return the original message from a ``message`` hash.

    Raises:
        RecordBroken: another user of Redis has written there.
    """
    return StoredMessage(
        body=raw.get("body", b""),
        content_type=decoded(raw.get("content_type", b"")),
        content_encoding=decoded(raw.get("content_encoding", b"")),
        headers=_mapping(raw, "headers"),
        properties=_mapping(raw, "properties"),
    )


def _mapping(raw: Mapping[str, bytes], name: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(value := read_json(raw.get(name, b"")), dict):
            return value
    raise RecordBroken(f"its {name} are not readable in Redis: another client has written there; discard it")


class PublishRefused(PoisonError):
    """The broker did not take the message; it stays in quarantine."""


def sent_to(stored: StoredMessage, queue: str) -> StoredMessage:
    """Return the same message for another queue.

    On Redis a message carries its own address, by which it is put back and retried; RabbitMQ writes that.
    """
    address = stored.properties.get("delivery_info")
    if not isinstance(address, dict):
        return stored
    address = {**address, "exchange": "", "routing_key": queue}
    return replace(stored, properties={**stored.properties, "delivery_info": address})


def has_expired(headers: Mapping[str, Any]) -> bool:
    """Return whether workers would discard a message for the time in its headers."""
    with suppress(ValueError, TypeError):
        at = datetime.fromisoformat(headers.get(EXPIRES) or "")
        return (at if at.tzinfo else at.replace(tzinfo=UTC)) <= datetime.now(UTC)
    return False


def able_to_run(stored: StoredMessage) -> StoredMessage:
    """Return the same message without an expiry that is over, and without the broker's time to live (NEW-26).

    An expiry to come stays: a worker brings back what passes it.
    """
    properties = {name: value for name, value in stored.properties.items() if name != TTL}
    headers = {**stored.headers, EXPIRES: None} if has_expired(stored.headers) else stored.headers
    return replace(stored, headers=headers, properties=properties)


def refuse_if_expired(stored: StoredMessage) -> None:
    """Raise if workers would discard the message without running it.

    Raises:
        PublishRefused: its ``expires`` is over.
    """
    if has_expired(stored.headers):
        at = stored.headers[EXPIRES]
        raise PublishRefused(f"it expired at {at}: no worker would run it, unless --keep-expiry is left out")


def as_released(raw: Mapping[str, bytes], record: MessageRecord) -> StoredMessage:
    """Return the original, with what its next run can read of a failure that is kept."""
    stored = stored_message(raw)
    if "failure" not in raw:
        return stored
    failure = KeptFailure.decode(raw["failure"])
    headers = carried_by_release(stored.headers, FAILURES, failure, record.evidence.source)
    return replace(stored, headers=headers)


def parcel_of(stored: StoredMessage, queue: str, release: int) -> Parcel:
    """Return the original with the headers of others as they were, and the number of its release.

    Raises:
        PublishRefused: it is no message at all.
    """
    if stored.content_type == ITEM:
        raise PublishRefused("no worker can read this: look at it with `show --raw`, and discard it")
    foreign = {name: value for name, value in stored.headers.items() if name not in _OF_ONE_COPY}
    return Parcel(stored, queue, {**foreign, RELEASE: release})


def refusal_of(error: Exception) -> Exception:
    """Return, in words for a person, what :meth:`Publisher.publish_each` returns."""
    if not isinstance(error, NotPublished):
        return error
    late = ". If it has the message all the same, the first worker that receives it completes this release"
    refused = PublishRefused(f"{error}{late if isinstance(error, NoAnswer) else ''}")
    refused.__cause__ = error
    return refused


def publish_release(publisher: Publisher, stored: StoredMessage, queue: str, release: int) -> None:
    """Publish one message as :func:`parcel_of` makes it.

    Raises:
        PublishRefused: the queue does not exist, the broker is away or refuses, or it is no message at all.
    """
    try:
        publisher.publish(*parcel_of(stored, queue, release))
    except NotPublished as error:
        raise refusal_of(error) from error
