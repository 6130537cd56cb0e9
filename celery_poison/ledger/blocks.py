"""Reading the block list; :meth:`Ledger.block`, :meth:`Ledger.unblock` and a conviction write it."""

from __future__ import annotations

from typing import Any

from celery_poison.blocks import Kind
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller

VERSION = "version"


def version(ledger: Caller) -> int:
    """Return the version of the block list, 0 if nobody ever changed it; one cheap look.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the version of the block list"):
        return _number(ledger.client.hget(ledger.keys.blocks, VERSION))


def read(ledger: Caller) -> tuple[int, dict[str, bytes], float]:
    """Return the version, all rules (field -> JSON, unchecked) and Redis' clock in seconds.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the block list"):
        pipe = ledger.client.pipeline()
        pipe.hgetall(ledger.keys.blocks)
        pipe.time()
        raw, (seconds, micros) = pipe.execute()
    found: dict[str, Any] = {name.decode("utf-8", "replace"): value for name, value in raw.items()}
    return _number(found.pop(VERSION, None)), found, seconds + micros / 1_000_000


def convictions(ledger: Caller, fingerprint: str) -> int:
    """Return how often messages of this fingerprint were convicted lately.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading a count of convictions"):
        return _number(ledger.client.get(ledger.keys.convictions(fingerprint)))


def field(kind: Kind, name: str) -> str:
    """Return where in the hash a rule stands."""
    return f"{kind}:{name}"


def _number(raw: Any) -> int:
    return int(raw) if raw and raw.isdigit() else 0
