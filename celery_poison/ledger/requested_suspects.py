"""Suspects that a person wants in quarantine, to decide about them there (SAP-7).

The worker that has one in hand sees that within a heartbeat interval, and hands it over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from celery_poison.ledger.connection import Namespace, clear_errors

#: Seconds for which a wish is remembered that no worker could fulfil: its message may be in a queue that no
#: worker consumes.
REMEMBERED = 3600


def want(ledger: Namespace, ids: Iterable[str], reason: str) -> None:
    """Note that a person wants the messages of these task ids in quarantine.

    Args:
        reason: a sentence, which quarantine keeps.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    text, names = json.dumps({"reason": reason}), [*ids]
    if not names:
        return
    with clear_errors("asking for a message"):
        pipe = ledger.client.pipeline()
        for id in names:
            pipe.hsetnx(ledger.keys.wanted, id, text)  # it may be there since a moment ago
        pipe.expire(ledger.keys.wanted, REMEMBERED)
        pipe.execute()


def wanted(ledger: Namespace) -> dict[str, str]:
    """Return the reason of each wanted message, by task id.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading which messages are wanted"):
        raw: Any = ledger.client.hgetall(ledger.keys.wanted)
    reasons = {}
    for id, text in raw.items():
        with suppress(ValueError, TypeError, LookupError):  # it is there, or a newer version has written this
            reasons[id.decode("utf-8", "replace")] = str(json.loads(text)["reason"])
    return reasons


def is_there(ledger: Namespace, id: str) -> str:
    """Return the mid under which a message is in quarantine now that was wanted; empty: it is not there.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading which messages are wanted"):
        raw: Any = ledger.client.hget(ledger.keys.wanted, id)
    with suppress(ValueError, TypeError, LookupError):
        return str(json.loads(raw)["mid"])
    return ""


def unwant(ledger: Namespace, id: str) -> None:
    """Take a wish back, or note that it was seen.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("taking back what was asked for"):
        ledger.client.hdel(ledger.keys.wanted, id)
