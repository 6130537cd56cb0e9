"""The original message, byte for byte: how it is stored, fingerprinted and published again."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from kombu.utils import json as kombu_json

from celery_poison.policy import Policy
from celery_poison.records import Parcel


def parcel_fields(message: Any, task: str, secret: bytes, policy: Policy) -> dict[str, str | bytes | int]:
    """Return the fields that keep ``message`` in the ledger, as it was received."""
    received = getattr(message, "received", None)
    headers = dict(message.headers)
    if received is None:
        # This transport unpacked the body before anybody could keep the original.
        received = message.body
        headers.pop("compression", None)
    body = received.encode() if isinstance(received, str) else bytes(received or b"")
    return {
        "body": body,
        "content_type": message.content_type or "",
        "content_encoding": message.content_encoding or "",
        "headers": kombu_json.dumps(headers),
        "properties": kombu_json.dumps(dict(message.properties)),
        "fingerprint": fingerprint(secret, task, body, headers, message.content_type, policy),
    }


def parcel_of(raw: Mapping[str, bytes]) -> Parcel:
    """Return the original message from a ``message`` hash."""
    return Parcel(
        body=raw["body"],
        content_type=raw["content_type"].decode(),
        content_encoding=raw["content_encoding"].decode(),
        headers=kombu_json.loads(raw["headers"]),
        properties=kombu_json.loads(raw["properties"]),
    )


def fingerprint(
    secret: bytes, task: str, body: bytes, headers: Mapping[str, Any], content_type: str, policy: Policy
) -> str:
    """Return a keyed hash of the task and its arguments (NEW-3), or of the body where it is not JSON.

    The key keeps people who can read fingerprints from guessing arguments.
    """
    told: Any = body
    if content_type == "application/json" and "compression" not in headers:
        try:
            args, kwargs, _ = json.loads(body)
            told = policy.fingerprint(*args, **kwargs) if policy.fingerprint else [args, kwargs]
        except Exception:
            told = body
    material = told if isinstance(told, bytes) else json.dumps(told, sort_keys=True, default=repr).encode()
    return hmac.new(secret, task.encode() + b"\0" + material, hashlib.sha256).hexdigest()[:16]
