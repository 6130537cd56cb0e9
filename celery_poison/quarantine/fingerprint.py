"""What tells equal messages: a keyed hash of the task and its arguments (NEW-3)."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from celery_poison.broker.publish import to_bytes

Arguments = tuple[list[Any], Mapping[str, Any]]

_READ = json.JSONDecoder().decode
_IN_ORDER = json.JSONEncoder(sort_keys=True).encode


def original_of(message: Any) -> tuple[bytes, dict[str, Any]]:
    """Return the body as it was received, and the headers that belong to it."""
    received = getattr(message, "received", None)
    headers = dict(message.headers)
    if received is None:
        # This transport unpacked the body before anybody could keep the original.
        received = message.body
        headers.pop("compression", None)
    return to_bytes(received) if isinstance(received, str) else bytes(received or b""), headers


def fingerprint_of_failure(secret: bytes, task: str, exception: str, calls: Iterable[str]) -> str:
    """Return what tells equal failures of a task: exception class and functions, without line numbers."""
    return _hash(secret, task, "\n".join(("raised", exception, *calls)).encode("utf-8", "replace"))


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
    arguments = arguments_of(body) if is_readable(message) else None
    if function is None or arguments is None:
        return hash_of(secret, task, body, arguments)
    args, kwargs = arguments
    value = function(*args, **kwargs)
    material = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, default=repr).encode()
    return _hash(secret, task, material)


def hash_of(secret: bytes, task: str, body: bytes | str, arguments: Arguments | None) -> str:
    """Return the fingerprint by all ``arguments``; by the whole ``body`` where they are not readable."""
    material = to_bytes(body) if isinstance(body, str) else body
    if arguments is not None:
        with suppress(RecursionError):  # nested as deep as reading allows, and writing does not
            material = _IN_ORDER(arguments).encode()
    return _hash(secret, task, material)


def arguments_of(body: bytes | str) -> Arguments | None:
    """Return what a task is called with, from a body in JSON; None if that cannot be read."""
    try:
        args, kwargs, _ = _READ(body) if isinstance(body, str) else json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return None
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def _hash(secret: bytes, task: str, material: bytes) -> str:
    keyed = _keyed(secret).copy()
    keyed.update(task.encode() + b"\0" + material)
    return keyed.digest()[:8].hex()


@lru_cache(maxsize=8)
def _keyed(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret, digestmod=hashlib.sha256)
