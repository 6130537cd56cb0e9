"""One look at the whole ledger, small enough to be taken every few seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from celery import Celery

from celery_poison.ledger.census import Census, Headcount, Inmate
from celery_poison.ledger.queries import Queries
from celery_poison.model import Ended, MessageRecord, Phase, WorkerRecord
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.stranded import find_stranded
from celery_poison.stuck import Kind

#: (task, cause, queue)
Labels = tuple[str, str, str]

#: At most so many are told apart; the rarest others are one, so that a flood of names stays here.
MAX_SERIES = 200
OTHERS: Labels = ("(other)", "(other)", "(other)")
#: Characters of a name that are told.
MAX_NAME = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How things stood at one moment.

    Attributes:
        took: seconds that the look took.
        quarantined: messages in quarantine by task, cause and queue, at most ``MAX_SERIES`` of them.
        oldest: seconds for which the longest has been in quarantine; 0 when there is none.
        totals: see ``Queries.totals``.
        trials: suspects that run alone at this moment.
        workers: see ``Queries.workers``.
        monitor: the incarnation that watches the others, or the empty string.
        open_incidents: dead workers that are still being cleaned up after.
        gate_closed: whether only a death on trial convicts, since too many workers died at once.
        counts: see ``Queries.counts``.
        stuck: messages that nobody works on, by kind.
        journal_age: seconds since the oldest entry of the journal; 0 when it is empty.
    """

    took: float
    quarantined: Mapping[Labels, int]
    oldest: float
    totals: Mapping[str, int]
    trials: int
    workers: list[WorkerRecord]
    monitor: str
    open_incidents: int
    gate_closed: bool
    counts: Mapping[str, int]
    stuck: Mapping[Kind, int]
    journal_age: float


class Observer:
    """Takes snapshots of one app's ledger; what it read of the quarantine it does not read again.

    Args:
        census: who is in quarantine, where this process keeps that already; None: one of its own.
    """

    def __init__(self, app: Celery, census: Headcount | None = None) -> None:
        plugin = plugin_of(app)
        ledger = plugin.open_ledger()
        self._app = app
        self._queries = Queries(ledger)
        self._census = census or Census(ledger)
        self._activation_ms = int(plugin.settings.activation_interval * 1000)

    def look(self) -> Snapshot:
        """Take a snapshot.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        begun = time.monotonic()
        inmates, queries = self._census.take(), self._queries
        arrivals = [inmate.quarantined_at for inmate in inmates if inmate.quarantined_at]
        seen = partial(
            Snapshot,
            quarantined=series(inmates),
            oldest=max(0.0, queries.now_ms() / 1000 - min(arrivals)) if arrivals else 0.0,
            totals=queries.totals(),
            trials=_trials(queries),
            workers=queries.workers(self._activation_ms),
            monitor=queries.monitor(),
            open_incidents=len(queries.open_incidents()),
            gate_closed=queries.gate().closed,
            counts=queries.counts(),
            stuck=find_stranded(self._app).counts,
            journal_age=queries.journal_age(),
        )
        return seen(took=time.monotonic() - begun)


def series(inmates: Iterable[Inmate | MessageRecord]) -> dict[Labels, int]:
    """Count messages by task, cause and queue; beyond ``MAX_SERIES`` the rarest are counted together."""
    whole = Counter(
        (found.task[:MAX_NAME], found.cause[:MAX_NAME], found.queue[:MAX_NAME]) for found in inmates
    )
    if len(whole) <= MAX_SERIES:
        return dict(whole)
    # Of equally frequent ones always the same are told apart.
    ranked = sorted(whole.items(), key=lambda row: (-row[1], row[0]))
    rest = sum(number for _, number in ranked[MAX_SERIES - 1 :])
    return {**dict(ranked[: MAX_SERIES - 1]), OTHERS: rest}


def _trials(queries: Queries) -> int:
    starts = (start for _, start, _ in queries.running())
    tokens = [start.token for start in starts if start.phase == Phase.RUNNING and start.alone]
    return sum(ended is Ended.NOT for ended in queries.ends(tokens))
