"""Which other workers live, for a sweep of the broker that may not wait for the ledger."""

from __future__ import annotations

from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries


class Owners:
    """Answers at once, from what was read last; what it cannot answer is read before the next sweep."""

    def __init__(self, ledger: Ledger) -> None:
        self._queries = Queries(ledger)
        self._asked: set[str] = set()
        self._known: dict[str, bool | None] = {}

    def is_alive(self, boot_id: str) -> bool | None:
        """Whether the worker with this boot id lives; None when nobody can say (on the event loop)."""
        self._asked.add(boot_id)
        return self._known.get(boot_id)

    def read(self) -> None:
        """Find out what was asked for (in the background thread).

        Raises:
            LedgerUnavailable: nothing is known then.
        """
        if not self._asked:
            return
        asked, self._asked, self._known = self._asked, set(), {}
        alive = {worker.rpartition("/")[2] for worker in self._queries.leases()}
        recovered_from = {worker.rpartition("/")[2] for worker in self._queries.open_incidents()}
        for boot_id in asked:
            # Its messages are put back after what it was running has been flagged, not before.
            self._known[boot_id] = None if boot_id in recovered_from else boot_id in alive
