"""All records of one state, kept in memory, so that pages, counts and filters cost Redis next to nothing."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from threading import Lock
from typing import NamedTuple

from celery_poison.ledger.queries import Queries
from celery_poison.model import MessageRecord
from celery_poison.quarantine.filters import AGE, Condition, Filter
from celery_poison.states import State

#: Records that are read before somebody is told; few at first, so that a page has something at once.
_FIRST, _BATCH = 200, 5000
#: Seconds between two looks at how far another thread has read.
_GLANCE = 0.2
#: Seconds after which everything is looked at, even if nothing seems to have changed.
_TRUSTED = 60

_FIELDS = frozenset(field.name for field in fields(MessageRecord))


class View(NamedTuple):
    """What was on the shelf at one moment, newest first; ``unread``: older ones are still to be read."""

    records: Sequence[MessageRecord] = ()
    taken_at: float | None = None
    unread: bool = False

    def matching(self, where: Filter | None) -> Sequence[MessageRecord]:
        """Return those that match, asking about each value only once."""
        found, now = self.records, time.time()
        for condition in where.conditions if where else ():
            choose = _by_age if condition.field == AGE else _by_value
            found = choose(found, condition, now)
        return found

    @property
    def oldest(self) -> float | None:
        moments = filter(None, map(attrgetter("quarantined_at"), self.records))
        return min(moments, default=None)


def _by_value(records: Sequence[MessageRecord], condition: Condition, now: float) -> list[MessageRecord]:
    if condition.field not in _FIELDS:
        return [record for record in records if condition.matches(record, now)]
    value_of, known, found = attrgetter(condition.field), dict[object, bool](), []
    for record in records:
        value = value_of(record)
        if value not in known:
            known[value] = condition.matches(record, now)
        if known[value]:
            found.append(record)
    return found


def _by_age(records: Sequence[MessageRecord], condition: Condition, now: float) -> Sequence[MessageRecord]:
    """Search for the one place where the answer changes: records are in the order of their age."""
    if condition.operator in ("=", "!=") or not records:
        return [record for record in records if condition.matches(record, now)]
    young = condition.matches(records[0], now)
    change = bisect_left(records, True, key=lambda record: condition.matches(record, now) is not young)
    return records[:change] if young else records[change:]


class Shelf:
    """The messages in quarantine (NDLV) or given up (FAIL), read once and then only what is new.

    A record does not change while its mid stands under the same moment in the index. 100,000 records take
    about 100 MB.
    """

    def __init__(self, queries: Queries, state: State) -> None:
        self._queries = queries
        self._state = state
        self._known: dict[tuple[str, float], MessageRecord] = {}
        self._newest: list[tuple[str, float]] | None = None
        self._counted_at = 0.0
        self._looking = Lock()
        self.view = View()

    def refresh(self, shown: Callable[[View], object] = lambda view: None) -> View:
        """Look again.

        Args:
            shown: is told of every view; while everything is read for the first time, here or in another
                thread, of incomplete ones too, the newest messages first.

        Raises:
            LedgerUnavailable: Redis is away; what was known stays.
        """
        while not self._looking.acquire(timeout=_GLANCE):
            if self.view.unread:
                shown(self.view)
        try:
            self._look(shown)
        finally:
            self._looking.release()
        shown(self.view)
        return self.view

    def _look(self, shown: Callable[[View], object]) -> None:
        now = self._queries.now_ms() / 1000
        if not self._known:
            self._read(self._queries.kept_index(self._state, _FIRST))
            self.view = View([*self._known.values()], now, unread=len(self._known) == _FIRST)
            shown(self.view)
        newest = self._queries.kept_index(self._state, 1)
        if self._is_same(newest, now):
            return
        index = self._queries.kept_index(self._state)
        missing = [entry for entry in index if entry not in self._known]
        for start in range(0, len(missing), _BATCH):
            self._read(missing[start : start + _BATCH])
            if start + _BATCH < len(missing) and self.view.unread:
                self.view = View([*self._known.values()], now, unread=True)
                shown(self.view)
        self._known = {entry: self._known[entry] for entry in index if entry in self._known}
        self.view = View([*self._known.values()], now)
        self._newest, self._counted_at = newest, now

    def take(self) -> Sequence[MessageRecord]:
        """Look again, in place of a census: who keeps all of each message needs none.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        return self.refresh().records

    def _is_same(self, newest: list[tuple[str, float]], now: float) -> bool:
        """Whether nothing came or went: what comes is the newest, what goes is missing in the count.

        Now and then it is looked at all the same: the clock of another Redis may go back after a failover.
        """
        count = self._queries.totals()["quarantined" if self._state is State.NDLV else "failed"]
        same = self._newest == newest and count == len(self.view.records) and not self.view.unread
        return same and now - self._counted_at < _TRUSTED

    def _read(self, entries: Sequence[tuple[str, float]]) -> None:
        found = self._queries.records(mid for mid, _ in entries)
        for entry, record in zip(entries, found, strict=True):
            if record is not None and record.state == self._state:
                self._known[entry] = record
