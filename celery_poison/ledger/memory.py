"""How full the ledger's Redis is, and how much of it may be taken by what anybody can send."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import redis

from celery_poison.basics.numbers import whole
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.keys import Keys

#: What may be taken by each kind of messages, as a share of ``maxmemory``.
SHARE = 0.25
#: Seconds for which ``maxmemory`` is not asked for again.
_KNOWN_FOR = 60.0


class Fullness(NamedTuple):
    """The memory that a Redis holds, in bytes.

    Attributes:
        used: by everything in it, of whomever.
        most: its ``maxmemory``; 0: it has none.
        unprocessable: by messages that never reached a task.
        parked: by messages that wait in the ledger.
    """

    used: int
    most: int
    unprocessable: int
    parked: int

    @property
    def share(self) -> float:
        return self.used / self.most if self.most else 0.0


class LedgerMemory:
    """The memory of one ledger's Redis; every method raises ``LedgerUnavailable`` when that is away."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._most, self._asked_at = 0, float("-inf")

    def at_most(self, limit: int) -> int:
        """Return how many bytes one kind of messages may take: ``limit``, or less in a small Redis."""
        now = time.monotonic()
        if now - self._asked_at >= _KNOWN_FOR:
            self._most, self._asked_at = self._info()[1], now
        return min(limit, int(SHARE * self._most)) if self._most else limit

    def fullness(self) -> Fullness:
        """Return how full it is now."""
        used, most = self._info()
        with clear_errors("asking what the ledger holds"):
            kept: Any = self._client.get(self._keys.unprocessable)
            parked: Any = self._client.memory_usage(self._keys.parcels, samples=100)
        return Fullness(used, most, whole(kept), int(parked or 0))

    def _info(self) -> tuple[int, int]:
        with clear_errors("asking how full Redis is"):
            info: Any = self._client.info("memory")
        return int(info.get("used_memory") or 0), int(info.get("maxmemory") or 0)
