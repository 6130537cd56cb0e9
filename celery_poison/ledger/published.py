"""Reading what the pipeline published; methods of :class:`~celery_poison.ledger.Ledger` write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller


def waiting(ledger: Caller) -> tuple[bytes | None, float]:
    """Return the sheet that waits for a person (JSON, unchecked), and Redis' clock in seconds.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    key = ledger.keys.published
    with clear_errors("reading the pipeline's proposal"):
        open_: Any = ledger.client.hget(key, "open")
        raw: Any = ledger.client.hget(key, f"sheet:{open_.decode('utf-8', 'replace')}") if open_ else None
        seconds, micros = ledger.client.time() if raw else (0, 0)
    return raw, seconds + micros / 1_000_000


def refused(ledger: Caller) -> set[str]:
    """Return the items of earlier proposals that a person said no to, and that are not to be proposed yet.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading what the pipeline may not propose"):
        pipe = ledger.client.pipeline()
        pipe.hget(ledger.keys.published, "refused")
        pipe.time()
        raw, (seconds, _) = pipe.execute()
    try:
        told = json.loads(raw or b"{}")
        until: Mapping[str, float] = told if isinstance(told, dict) else {}
        return {item for item, ends in until.items() if ends > seconds * 1000}
    except (ValueError, TypeError, RecursionError):
        return set()
