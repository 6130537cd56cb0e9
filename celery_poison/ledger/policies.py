"""Reading the overrides of policies; :meth:`Ledger.set_policy` writes them."""

from __future__ import annotations

from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.scripts import Caller

VERSION = "version"


def version(ledger: Caller) -> int:
    """Return the version of the overrides, 0 if nobody ever changed any; one cheap look.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the version of the policies"):
        return _number(ledger.client.hget(ledger.keys.policy, VERSION))


def read(ledger: Caller) -> tuple[int, dict[str, bytes]]:
    """Return the version and all overrides (task name or ``*`` -> JSON, unchecked), of one moment.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading the policies"):
        raw: Any = ledger.client.hgetall(ledger.keys.policy)
    found = {name.decode("utf-8", "replace"): value for name, value in raw.items()}
    return _number(found.pop(VERSION, None)), found


def _number(raw: Any) -> int:
    return int(raw) if raw and raw.isdigit() else 0
