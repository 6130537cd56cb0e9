"""The read model: what Flower's pages and the metrics show, kept in memory and only completed at each look.

Who looks only once needs none of this: a command reads :mod:`~celery_poison.quarantine.overview`, and streams
what is kept.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, cast

from celery import Celery

from celery_poison.ledger.queries import Queries
from celery_poison.model import Brief, Ended, MessageRecord, Phase
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.overview import Overview, overview
from celery_poison.quarantine.search import By, Filter, Group, grouped
from celery_poison.states import State

#: Records that are read before somebody is shown them; few at first, so that a page has something at once.
_FIRST, _BATCH = 200, 5000
#: Seconds between two looks at how far another thread has read.
_GLANCE = 0.2
#: Seconds after which the whole index is read, even if nothing seems to have changed.
_TRUSTED = 60

#: Sets of task, cause and queue that are told apart at most, and characters of such a name.
MAX_SERIES, MAX_NAME = 200, 120

Entry = tuple[str, float]
#: (task, cause, queue)
Labels = tuple[str, str, str]
OTHERS: Labels = ("(other)", "(other)", "(other)")


class View(NamedTuple):
    """What was kept at one moment, newest first; ``unread``: older ones are still to be read."""

    records: Sequence[MessageRecord] = ()
    taken_at: float | None = None
    unread: bool = False

    def matching(self, where: Filter | None) -> Sequence[MessageRecord]:
        return self.records if where is None else [*where.choose(self.records)]


class Kept:
    """The messages in quarantine (NDLV) or given up (FAIL), read once and then only what is new.

    A record does not change while its mid stands under the same moment in the index. 100,000 records take
    about 100 MB, brief ones 50.
    """

    def __init__(self, queries: Queries, state: State, *, brief: bool = False) -> None:
        self._queries = queries
        self._state = state
        self._brief = brief
        self._known: dict[Entry, MessageRecord] = {}
        self._newest: list[Entry] | None = None
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
            self.view = self.view._replace(taken_at=now)
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

    def _is_same(self, newest: list[Entry], now: float) -> bool:
        """Whether nothing came or went: what comes is the newest, what goes is missing in the count.

        Now and then it is looked at all the same: the clock of another Redis may go back after a failover.
        """
        count = self._queries.totals()["quarantined" if self._state is State.NDLV else "failed"]
        same = self._newest == newest and count == len(self.view.records) and not self.view.unread
        return same and now - self._counted_at < _TRUSTED

    def _read(self, entries: Sequence[Entry]) -> None:
        if self._brief:
            # Who asks for brief records counts and compares only what both kinds have.
            found = cast("Iterable[MessageRecord]", self._queries.briefs(entries))
        else:
            records = self._queries.records(mid for mid, _ in entries)
            found = (record for record in records if record is not None and record.state == self._state)
        by_mid = {record.mid: record for record in found}
        self._known.update((entry, by_mid[entry[0]]) for entry in entries if entry[0] in by_mid)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of the whole, as of one moment; nothing at all before the first answer of Redis.

    Attributes:
        view: what is in quarantine.
        groups: the same, counted by task and cause.
        series: the same, counted by task, cause and queue; at most ``MAX_SERIES`` of them.
        oldest: when the longest of them came to quarantine, in seconds since 1970.
        trials: suspects that run alone at this moment.
        counts: totals since the ledger began, as docs/keys.md names them.
        journal_age: seconds since the oldest entry of the journal; 0 when it is empty.
        took: seconds that the look took.
        at: when, by the monotonic clock.
    """

    overview: Overview | None = None
    view: View = field(default_factory=View)
    groups: Sequence[Group] = ()
    series: Mapping[Labels, int] = field(default_factory=dict)
    oldest: float | None = None
    trials: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    journal_age: float = 0.0
    took: float = 0.0
    at: float = float("-inf")

    @property
    def age(self) -> float:
        """Seconds."""
        return time.monotonic() - self.at


class ReadModel:
    """What one app's ledger holds, for those who look again and again; for any number of threads.

    Args:
        brief: keep of each message in quarantine only what metrics count.

    Raises:
        ConfigurationError: a setting is wrong.
    """

    def __init__(self, app: Celery, *, brief: bool = False) -> None:
        self._app = app
        self._queries = Queries(plugin_of(app).open_ledger())
        self.quarantined = Kept(self._queries, State.NDLV, brief=brief)
        self.given_up = Kept(self._queries, State.FAIL)
        self._newest = Snapshot()

    def kept(self, state: State) -> Kept:
        """Return what is in quarantine (NDLV) or given up (FAIL)."""
        return self.quarantined if state is State.NDLV else self.given_up

    def look(self, shown: Callable[[Snapshot], object] = lambda snapshot: None) -> Snapshot:
        """Look again; raises, and ``shown``, as :meth:`Kept.refresh`."""
        begun = time.monotonic()
        seen, trials = overview(self._app, queues=True), _trials(self._queries)
        counts, journal_age = self._queries.counts(), self._queries.journal_age()

        def show(view: View) -> None:
            before = self._newest
            counted: tuple[Sequence[Group], Mapping[Labels, int], float | None]
            if before.view.records is not view.records:
                counted = grouped(view.records, By.CAUSE), series(view.records), _oldest(view.records)
            else:
                counted = before.groups, before.series, before.oldest
            now = time.monotonic()
            self._newest = Snapshot(seen, view, *counted, trials, counts, journal_age, now - begun, now)
            shown(self._newest)

        self.quarantined.refresh(show)
        return self._newest


def series(records: Iterable[Brief | MessageRecord]) -> dict[Labels, int]:
    """Count messages by task, cause and queue; beyond ``MAX_SERIES`` the rarest are counted together."""
    whole = Counter((each.task[:MAX_NAME], each.cause[:MAX_NAME], each.queue[:MAX_NAME]) for each in records)
    if len(whole) <= MAX_SERIES:
        return dict(whole)
    # Of equally frequent ones always the same are told apart.
    ranked = sorted(whole.items(), key=lambda row: (-row[1], row[0]))
    rest = sum(number for _, number in ranked[MAX_SERIES - 1 :])
    return {**dict(ranked[: MAX_SERIES - 1]), OTHERS: rest}


def _oldest(records: Sequence[MessageRecord]) -> float | None:
    return min(filter(None, (record.quarantined_at for record in records)), default=None)


def _trials(queries: Queries) -> int:
    starts = (start for _, start, _ in queries.running())
    tokens = [start.token for start in starts if start.phase == Phase.RUNNING and start.alone]
    return sum(ended is Ended.NOT for ended in queries.ends(tokens))
