"""The newest entries of the journal, and how far it goes back."""

from __future__ import annotations

from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.history import entry
from celery_poison.ledger.reading.reader import Reader


class Journal(Reader):
    """Reads the journal as a whole; :mod:`celery_poison.ledger.history` reads what it says of one task."""

    def journal(self, *, id: str = "", count: int = 1000) -> list[dict[str, str]]:
        """Return the newest journal entries, oldest first; only those of task ``id`` if given."""
        with clear_errors("reading the journal"):
            rows: Any = self._client.xrevrange(self._keys.journal, count=count)
        entries = [entry(key, row) for key, row in reversed(rows)]
        return [found for found in entries if not id or found["id"] == id]

    def journal_age(self) -> float:
        """Return for how many seconds the journal has been written; 0 when it is empty."""
        with clear_errors("reading the journal"):
            oldest: Any = self._client.xrange(self._keys.journal, count=1)
        return (self.now_ms() - int(oldest[0][0].partition(b"-")[0])) / 1000 if oldest else 0.0
