"""Reading what the pipeline published; :meth:`Ledger.publish` and :meth:`Ledger.retract` write it."""

from __future__ import annotations

import json
from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.ledger import Ledger


def proposed(ledger: Ledger) -> dict[str, Any] | None:
    """Return the sheet that waits for a person, or None: there is none, or it is over, or not to be read.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the pipeline's proposal"):
        pipe = ledger.client.pipeline()
        pipe.hget(ledger.keys.published, "proposed")
        pipe.time()
        raw, (seconds, micros) = pipe.execute()
    try:
        sheet = json.loads(raw or b"null")
        over = sheet["until_ms"] <= seconds * 1000 + micros // 1000 if sheet else True
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return None if over else dict(sheet)
