"""All records of one state, kept in memory, so that pages, counts and filters cost Redis next to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from threading import Lock
from typing import NamedTuple

from celery_poison.ledger.queries import Queries
from celery_poison.quarantine.filters import Filter
from celery_poison.records import MessageRecord
from celery_poison.states import State


class View(NamedTuple):
    """What was on the shelf at one moment, newest first."""

    records: Sequence[MessageRecord] = ()
    taken_at: float | None = None

    def matching(self, where: Filter | None) -> Sequence[MessageRecord]:
        if where is None:
            return self.records
        return [record for record in self.records if where.matches(record)]

    @property
    def oldest(self) -> float | None:
        moments = filter(None, map(attrgetter("quarantined_at"), self.records))
        return min(moments, default=None)


class Shelf:
    """The messages in quarantine (NDLV) or given up (FAIL), read once and then only what is new.

    A record does not change while its mid stands under the same moment in the index. 100,000 records take
    about 100 MB.
    """

    def __init__(self, queries: Queries, state: State) -> None:
        self._queries = queries
        self._state = state
        self._known: dict[tuple[str, float], MessageRecord] = {}
        self._looking = Lock()
        self.view = View()

    def refresh(self) -> View:
        """Look again.

        Raises:
            LedgerUnavailable: Redis is away; what was known stays.
        """
        with self._looking:
            now = self._queries.now_ms() / 1000
            index = self._queries.kept_index(self._state)
            missing = [entry for entry in index if entry not in self._known]
            found = dict(zip(missing, self._queries.records(mid for mid, _ in missing), strict=True))
            self._known = dict(self._present(index, found))
            self.view = View([*self._known.values()], now)
            return self.view

    def _present(
        self, index: Sequence[tuple[str, float]], found: dict[tuple[str, float], MessageRecord | None]
    ) -> Iterator[tuple[tuple[str, float], MessageRecord]]:
        for entry in index:
            record = self._known.get(entry) or found.get(entry)
            if record is not None and record.state == self._state:
                yield entry, record
