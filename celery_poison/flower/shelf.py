"""All records of one state, kept in memory, so that pages, counts and filters cost Redis next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import Lock
from typing import NamedTuple

from celery_poison.ledger.queries import Queries
from celery_poison.quarantine.filters import Filter
from celery_poison.records import MessageRecord
from celery_poison.states import State

#: Records that are read before somebody is told; few at first, so that a page has something at once.
_FIRST, _BATCH = 200, 5000


class View(NamedTuple):
    """What was on the shelf at one moment, newest first; ``unread`` says that older ones are still to be read."""

    records: Sequence[MessageRecord] = ()
    taken_at: float | None = None
    unread: bool = False

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

    def refresh(self, shown: Callable[[View], object] | None = None) -> View:
        """Look again.

        Args:
            shown: is told of every view; at the first look of incomplete ones too, the newest messages first.

        Raises:
            LedgerUnavailable: Redis is away; what was known stays.
        """
        with self._looking:
            now = self._queries.now_ms() / 1000
            if not self._known and shown:
                self._read(self._queries.kept_index(self._state, _FIRST))
                self.view = View([*self._known.values()], now, unread=len(self._known) == _FIRST)
                shown(self.view)
            index = self._queries.kept_index(self._state)
            missing = [entry for entry in index if entry not in self._known]
            for start in range(0, len(missing), _BATCH):
                self._read(missing[start : start + _BATCH])
                if start + _BATCH < len(missing) and self.view.unread and shown:
                    self.view = View([*self._known.values()], now, unread=True)
                    shown(self.view)
            self._known = {entry: self._known[entry] for entry in index if entry in self._known}
            self.view = View([*self._known.values()], now)
        if shown:
            shown(self.view)
        return self.view

    def _read(self, entries: Sequence[tuple[str, float]]) -> None:
        found = self._queries.records(mid for mid, _ in entries)
        for entry, record in zip(entries, found, strict=True):
            if record is not None and record.state == self._state:
                self._known[entry] = record
