"""What holds for the whole fleet, read: policies, blocks, pauses; ``LedgerUnavailable``: Redis is away."""

from __future__ import annotations

from typing import Any

from celery_poison.basics.numbers import whole
from celery_poison.ledger.connection import Namespace, clear_errors
from celery_poison.rules.blocks import RuleKind

VERSION = "version"


def version(ledger: Namespace, key: str) -> int:
    """Return the version of what a hash keeps, 0 if none was ever changed; one cheap look.

    Args:
        key: ``keys.policy``, ``keys.blocks`` or ``keys.paused``.
    """
    with clear_errors("reading a version"):
        return number_of(ledger.client.hget(key, VERSION))


def read(ledger: Namespace, key: str) -> tuple[int, dict[str, bytes], float]:
    """Return a hash's version, its fields (name -> JSON, unchecked) and Redis' clock in seconds."""
    with clear_errors("reading policies, blocks or pauses"):
        pipe = ledger.client.pipeline(transaction=False)  # MULTI is refused where Redis is full
        pipe.hgetall(key)
        pipe.time()
        raw, (seconds, micros) = pipe.execute()
    fields: dict[str, Any] = {name.decode("utf-8", "replace"): value for name, value in raw.items()}
    return number_of(fields.pop(VERSION, None)), fields, seconds + micros / 1_000_000


def block_field(kind: RuleKind, name: str) -> str:
    """Return where in the hash a rule stands."""
    return f"{kind}:{name}"


def number_of(raw: Any) -> int:
    """Return a version as Redis keeps it; 0 where there is none."""
    return max(0, whole(raw))
