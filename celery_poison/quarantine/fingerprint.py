"""What tells equal messages: a keyed hash of the task and its arguments (NEW-3)."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

from celery_poison.broker.publish import to_bytes


def original_of(message: Any) -> tuple[bytes, dict[str, Any]]:
    """Return the body as it was received, and the headers that belong to it."""
    received = getattr(message, "received", None)
    headers = dict(message.headers)
    if received is None:
        # This transport unpacked the body before anybody could keep the original.
        received = message.body
        headers.pop("compression", None)
    return to_bytes(received) if isinstance(received, str) else bytes(received or b""), headers


def is_readable(message: Any) -> bool:
    """Whether arguments may be read: in JSON and not compressed. Of others the whole body counts."""
    compressed = "compression" in message.headers and getattr(message, "received", None) is not None
    return bool(message.content_type == "application/json" and not compressed)


def fingerprint_of(message: Any, task: str, secret: bytes, function: Callable[..., Any] | None = None) -> str:
    """Return the fingerprint of a message, of at most 16 characters.

    The key keeps people who can read fingerprints from guessing arguments.

    Args:
        function: of the task's arguments, the user's own; not asked where they are not readable.

    Raises:
        Exception: whatever ``function`` raises, or its result does.
    """
    body, _ = original_of(message)
    arguments = _arguments(body) if is_readable(message) else None
    if arguments is None:
        told: Any = body
    elif function is None:
        return _hash(secret, task, _text(arguments) or body)
    else:
        args, kwargs = arguments
        told = function(*args, **kwargs)
    material = told if isinstance(told, bytes) else json.dumps(told, sort_keys=True, default=repr).encode()
    return _hash(secret, task, material)


def _arguments(body: bytes) -> tuple[list[Any], Mapping[str, Any]] | None:
    try:
        args, kwargs, _ = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return None
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def _text(arguments: tuple[list[Any], Mapping[str, Any]]) -> bytes | None:
    try:
        return json.dumps(arguments, sort_keys=True).encode()
    except RecursionError:  # nested as deep as reading allows, and writing does not
        return None


def _hash(secret: bytes, task: str, material: bytes) -> str:
    return hmac.new(secret, task.encode() + b"\0" + material, hashlib.sha256).hexdigest()[:16]
