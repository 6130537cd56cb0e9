"""Reading the ledger: lists, single records, workers and incidents, totals. Changes nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.connection import clear_errors
from celery_poison.ledger.journal import entry
from celery_poison.ledger.reading.fleet import Fleet
from celery_poison.ledger.reading.messages import Messages, ParkedMessages

#: Keys that are looked at for other namespaces, and at once.
_SEARCHED, _STEP = 200_000, 5000


class Queries(Messages, ParkedMessages, Fleet):
    """Typed views of one ledger; every method raises ``LedgerUnavailable`` when Redis is away."""

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

    def neighbours(self) -> list[str]:
        """Return the namespaces in this Redis, as far as a short search finds them; [] if refused."""
        found, cursor = set[str](), 0
        with suppress(LedgerUnavailable), clear_errors("looking for other namespaces"):
            for _ in range(_SEARCHED // _STEP):
                reply: Any = self._client.scan(cursor, match="{*}:meta", count=_STEP)
                cursor = reply[0]
                found.update(key.decode("utf-8", "replace")[1:-6] for key in reply[1])
                if not cursor:
                    break
        return sorted(found)

    def would_quarantine(self) -> dict[str, int]:
        """Return how many messages would have been quarantined, by cause (``poison_observe_only``)."""
        with clear_errors("reading what was observed"):
            raw: Any = self._client.hgetall(self._keys.would)
        return {cause.decode("utf-8", "replace"): int(number) for cause, number in sorted(raw.items())}

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

    def meta(self) -> dict[str, str]:
        """Return schema, app and broker of the ledger; {} before the first worker signed it."""
        with clear_errors("reading whose ledger this is"):
            row: Any = self._client.hmget(self._keys.meta, ("schema", "app", "broker"))
        found = zip(("schema", "app", "broker"), row, strict=True)
        return {name: value.decode() for name, value in found if value is not None}
