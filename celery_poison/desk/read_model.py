"""The read model: what Flower's pages and the metrics show of the whole, as of one moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from celery import Celery

from celery_poison.desk.finder import Finder
from celery_poison.desk.overview import Overview
from celery_poison.desk.search import Group
from celery_poison.desk.survey import overview
from celery_poison.ledger.groups import Alike
from celery_poison.model import Ended, MessageRecord, Phase
from celery_poison.plugin import plugin_of
from celery_poison.states import State

#: Messages of the first page, which is there even while Redis is away.
NEWEST = 50
#: Groups that are shown.
LISTED = 20
#: Sets of task, cause and queue that have numbers of their own at most, and characters of such a name.
MAX_SERIES, MAX_NAME = 200, 120

#: (task, cause, queue)
Labels = tuple[str, str, str]
OTHERS: Labels = ("(other)", "(other)", "(other)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The quarantine and the fleet as of one moment; nothing at all before the first answer of Redis.

    Attributes:
        newest: what came to quarantine last, newest first.
        groups: what is in quarantine, counted by task and cause, failures by exception.
        raised: id of a group -> class of that exception, of the ``LISTED`` largest groups.
        deaths: (days since 1970 in UTC, task) -> deaths of its messages; the empty name: of other tasks.
        series: the same, counted by task, cause and queue; at most ``MAX_SERIES`` of them.
        trials: suspects that run alone at this moment.
        counts: totals since the ledger began, as docs/keys.md names them.
        journal_age: seconds since the oldest entry of the journal; 0 when it is empty.
        took: seconds that the look took.
        at: when, by the monotonic clock.
    """

    overview: Overview | None = None
    newest: Sequence[MessageRecord] = ()
    groups: Sequence[Group] = ()
    raised: Mapping[str, str] = field(default_factory=dict)
    deaths: Mapping[tuple[int, str], int] = field(default_factory=dict)
    series: Mapping[Labels, int] = field(default_factory=dict)
    trials: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    journal_age: float = 0.0
    took: float = 0.0
    at: float = float("-inf")

    @property
    def age(self) -> float:
        """Seconds."""
        return time.monotonic() - self.at

    @property
    def oldest(self) -> float | None:
        """When what is in quarantine for longest came there, in seconds since 1970."""
        oldest = self.overview and self.overview.oldest
        return oldest.quarantined_at if oldest else None


class ReadModel:
    """Looks at what one app's ledger holds; for any number of threads.

    Raises:
        ConfigurationError: a setting is wrong.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._ledger = ledger = plugin_of(app).open_ledger()
        self._queries = ledger.read
        self._finder = Finder(ledger)

    def look(self) -> Snapshot:
        """Look again; raises ``LedgerUnavailable``."""
        begun = time.monotonic()
        seen, counted = overview(self._app, queues=True, ledger=self._ledger), self._finder.by_queue()
        groups = self._finder.for_people(counted)
        now = time.monotonic()
        running = (start for _, start, _ in self._queries.running())
        tried = [start.token for start in running if start.phase == Phase.RUNNING and start.alone]
        return Snapshot(
            overview=seen,
            newest=[*islice(self._queries.kept(State.NDLV), NEWEST)],
            groups=groups,
            raised=self._finder.raised(groups[:LISTED]),
            deaths=self._queries.deaths_by_day(),
            series=series(counted.groups),
            trials=sum(ended is Ended.NOT for ended in self._queries.ends(tried)),
            counts=self._queries.counts(),
            journal_age=self._queries.journal_age(),
            took=now - begun,
            at=now,
        )


def series(groups: Iterable[Alike]) -> dict[Labels, int]:
    """Count messages by task, cause and queue; beyond ``MAX_SERIES`` the rarest are counted together."""
    whole = Counter[Labels]()
    for each in groups:
        whole[each.task[:MAX_NAME], each.cause[:MAX_NAME], each.queue[:MAX_NAME]] += each.messages
    if len(whole) <= MAX_SERIES:
        return dict(whole)
    # Of equally frequent ones always the same have numbers of their own.
    by_number = sorted(whole.items(), key=lambda row: (-row[1], row[0]))
    rest = sum(number for _, number in by_number[MAX_SERIES - 1 :])
    return {**dict(by_number[: MAX_SERIES - 1]), OTHERS: rest}
