"""What can be said about the death of a whole worker: what its last heartbeat told (NEW-2)."""

from __future__ import annotations

import json
from typing import Any

from celery_poison.evidence import NEAR, Evidence
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.fleet import Silence


def last_heard(ledger: Ledger, worker: str, how: Silence) -> Evidence:
    """Return what is known about a worker that is about to be declared dead.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the last heartbeat of a worker"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hget(ledger.keys.worker(worker), "vitals")
        pipe.zscore(ledger.keys.leases, worker)
        pipe.hget(ledger.keys.gone, worker)
        pipe.time()
        vitals, beat, gone, (seconds, micros) = pipe.execute()
    ended = int(gone) if how is Silence.GONE and gone else seconds * 1000 + micros // 1000
    heard_ms = max(0, ended - int(beat)) if beat is not None else None
    try:
        return _evidence(json.loads(vitals or b"{}"), how, heard_ms)
    except (ValueError, TypeError, KeyError, AttributeError):  # another version's
        return Evidence(noticed=how, heard_ms=heard_ms)


def _evidence(told: dict[str, Any], how: Silence, heard_ms: int | None) -> Evidence:
    if not told:
        return Evidence(noticed=how, heard_ms=heard_ms)
    used, limit = told["used_kb"], told["limit_kb"]
    return Evidence(
        noticed=how,
        heard_ms=heard_ms,
        used_kb=used or None,
        limit_kb=limit or None,
        limit_of=told["limit_of"] if limit else "",
        near_limit=used >= NEAR * limit if limit else None,
        asked=told.get("asked", ""),
        asked_ms=told["asked_ms"] + (heard_ms or 0) if "asked_ms" in told else None,
    )
