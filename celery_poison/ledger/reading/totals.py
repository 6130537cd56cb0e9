"""How many there are of everything."""

from __future__ import annotations

from typing import Any

from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.reading.reader import Reader


class Totals(Reader):
    """Counts what is on record, and what has happened since the ledger began."""

    def totals(self) -> dict[str, int]:
        """Return how many messages are in quarantine, failed, candidates, running and parked."""
        with clear_errors("counting"):
            pipe = self._client.pipeline(transaction=False)
            pipe.zcard(self._keys.quarantine)
            pipe.zcard(self._keys.failed)
            pipe.zcard(self._keys.candidates)
            pipe.hlen(self._keys.running)
            pipe.hlen(self._keys.done)
            pipe.xlen(self._keys.journal)
            pipe.hlen(self._keys.parcels)
            counts = pipe.execute()
        names = ("quarantined", "failed", "candidates", "running", "ended", "journal", "parked")
        found = dict(zip(names, counts, strict=True))
        # What was acknowledged a moment ago is not forgotten yet.
        found["running"] = max(0, found["running"] - found.pop("ended"))
        return found

    def counts(self) -> dict[str, int]:
        """Return the totals since the ledger began, as docs/keys.md names them."""
        with clear_errors("reading the totals"):
            raw: Any = self._client.hgetall(self._keys.counts)
        return {name.decode("utf-8", "replace"): int(number) for name, number in raw.items()}

    def would_quarantine(self) -> dict[str, int]:
        """Return how many messages would have been quarantined, by cause (``poison_observe_only``)."""
        with clear_errors("reading what was observed"):
            raw: Any = self._client.hgetall(self._keys.would)
        return {cause.decode("utf-8", "replace"): int(number) for cause, number in sorted(raw.items())}
