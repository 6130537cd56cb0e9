"""Every metric: its name, what it says, its labels, and where in a snapshot it stands.

docs/monitoring.md tells them too, and a test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from celery_poison import causes
from celery_poison.ledger.fleet import RECOVERY_BOUNDS
from celery_poison.quarantine.overview import Overview
from celery_poison.quarantine.read_model import Snapshot

PREFIX = "celery_poison_"

#: Values of the labels, in their order, and the number.
Rows = Iterable[tuple[tuple[str, ...], float]]
Fillable = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: without ``celery_poison_``; of a counter with ``_total``.
        read: returns a number, or where there are labels a row for each; None: there is nothing to say. Of a
            histogram the buckets, not cumulated, by their upper bound, and last the sum.
    """

    name: str
    says: str
    read: Callable[..., Rows | float | None]
    labels: tuple[str, ...] = ()
    kind: type[Fillable] = GaugeMetricFamily

    def metric(self) -> Fillable:
        """Return it without a number."""
        return self.kind(PREFIX + self.name, self.says, labels=self.labels)

    def filled(self, *seen: Any) -> Fillable:
        """Return it with what ``read`` finds in what was seen."""
        metric, found = self.metric(), self.read(*seen)
        rows: Rows = found if isinstance(found, Iterable) else [] if found is None else [((), found)]
        if isinstance(metric, HistogramMetricFamily):
            *buckets, (_, total) = rows
            bounds = [bound.replace("inf", "+Inf") for (bound,), _ in buckets]
            sums = accumulate(number for _, number in buckets)
            metric.add_metric((), buckets=[*zip(bounds, sums, strict=True)], sum_value=total)
            return metric
        for labels, number in rows:
            metric.add_metric(labels, float(number))
        return metric


def _workers(overview: Overview) -> Rows:
    stopping, alive = overview.stopping, overview.alive
    return [(("alive",), alive - stopping), (("stopping",), stopping), (("silent",), overview.dead)]


def _by_cause(
    counts: Mapping[str, int], what: str, expected: Iterable[str]
) -> Iterator[tuple[tuple[str], int]]:
    # A counter that appears at 1 has risen by nothing, as Prometheus sees it: so it begins at 0.
    numbers = Counter(dict.fromkeys(expected, 0))
    for name, number in counts.items():
        event, _, cause = name.partition(":")
        if event == what and cause:
            numbers[cause if causes.is_known(cause) else "(other)"] += number
    return (((cause,), number) for cause, number in sorted(numbers.items()))


def _quarantined(snapshot: Snapshot, *, convicted: bool) -> Rows:
    expected = (*causes.DEATHS, causes.FAILURES) if convicted else causes.NO_CONVICTIONS
    rows = _by_cause(snapshot.counts, "quarantined", expected)
    return [row for row in rows if (row[0][0] not in causes.NO_CONVICTIONS) is convicted]


def _lanes(overview: Overview) -> Iterable[Any]:
    return overview.panel("outbox") or ()


def _waiting(overview: Overview) -> Rows:
    waiting = Counter[str]()
    for lane in _lanes(overview):
        waiting[lane.queue] += lane.waiting
    return [((queue,), number) for queue, number in sorted(waiting.items())]


def _age_in_database(overview: Overview) -> float | None:
    rows = overview.panel("outbox_database")
    known = rows and rows.rows is not None  # else it cannot be read
    return max(0.0, overview.at - (rows.oldest or overview.at)) if rows and known else None


def _recoveries(snapshot: Snapshot) -> Rows:
    bounds = [*map(str, RECOVERY_BOUNDS), "inf"]
    buckets = [((bound,), float(snapshot.counts.get(f"recovered:{bound}", 0))) for bound in bounds]
    return [*buckets, (("sum",), snapshot.counts.get("recovered_ms", 0) / 1000)]


def _in_queues(overview: Overview) -> Rows:
    for each in overview.queues:
        numbers = {"waiting": each.waiting, "parked": each.parked, "candidates": each.candidates}
        yield from (((each.queue, where), n) for where, n in numbers.items() if n is not None)


#: Each reads a snapshot of the read model, and the overview in it.
FAMILIES = (
    Family(
        "quarantine_messages",
        "Messages in quarantine (NDLV)",
        lambda s, o: s.series.items(),
        ("task", "cause", "queue"),
    ),
    Family(
        "quarantine_oldest_seconds",
        "For how long the oldest message has been in quarantine, 0 when there is none",
        lambda s, o: max(0.0, o.at - (s.oldest or o.at)),
    ),
    Family(
        "given_up_messages", "Messages that were given up and are still kept (FAIL)", lambda s, o: o.failed
    ),
    Family(
        "candidates", "Messages that are flagged as candidates, waiting or running", lambda s, o: o.candidates
    ),
    Family("trials", "Suspects that run alone at this moment", lambda s, o: s.trials),
    Family("running", "Messages that workers have in their hands", lambda s, o: o.running),
    Family(
        "parked",
        "Messages that wait in the ledger: until an earlier start ends, or on their way to their trial",
        lambda s, o: o.parked,
    ),
    Family(
        "stuck_messages",
        "Messages that should have gone on by now, and that no worker has; of each kind at most 1000",
        lambda s, o: [((kind,), number) for kind, number in o.stranded.counts.items()],
        ("kind",),
    ),
    Family(
        "outbox_messages",
        "Messages that wait in the outbox, by the queue that they go to",
        lambda s, o: _waiting(o),
        ("queue",),
    ),
    Family(
        "outbox_database_messages",
        "Messages that wait in your own database, where it can be read from here",
        lambda s, o: (rows := o.panel("outbox_database")) and rows.rows,
    ),
    Family(
        "outbox_database_oldest_seconds",
        "For how long the first of them has been there, 0 when none waits",
        lambda s, o: _age_in_database(o),
    ),
    Family(
        "outbox_blocked",
        "Queues to which sending from the outbox is blocked, or that of a task",
        lambda s, o: len({lane.queue for lane in _lanes(o) if lane.blocked}),
    ),
    Family(
        "outbox_unsent",
        "Messages tied to the success of a task that could not be sent, and wait for a person",
        lambda s, o: o.panel("unsent"),
    ),
    Family("workers", "Workers that guard messages, by state", lambda s, o: _workers(o), ("state",)),
    Family(
        "stuck_workers",
        "Workers that live and do not work, by condition",
        lambda s, o: [((condition,), number) for condition, number in o.stuck.items()],
        ("condition",),
    ),
    Family(
        "deaf_workers",
        "Workers that live and consume nothing, while messages wait for them",
        lambda s, o: len(o.deaf),
    ),
    Family(
        "open_incidents",
        "Dead workers whose messages are still being put back",
        lambda s, o: len(o.open_incidents),
    ),
    Family(
        "fleet_gate_closed",
        "1 while the fleet gate is closed: only a death on trial convicts",
        lambda s, o: o.gate.closed,
    ),
    Family(
        "tasks_paused_for_version",
        "Tasks that the deploy guard has paused, since a version of the code kills them",
        lambda s, o: sum(bool(pause.version) for pause in o.panel("paused") or ()),
    ),
    Family("monitor_present", "1 if a monitor watches the workers", lambda s, o: bool(o.monitor)),
    Family(
        "unguarded_tasks",
        "Tasks that present workers ran without the ledger's knowledge; 0 again ten minutes after the last",
        lambda s, o: o.unguarded,
    ),
    Family(
        "ledger_errors",
        "Errors of the ledger that present workers counted; 0 again ten minutes after the last",
        lambda s, o: o.ledger_errors,
    ),
    Family(
        "crashes_total",
        "Starts that died",
        lambda s, o: _by_cause(s.counts, "crashed", causes.DEATHS),
        ("cause",),
        CounterMetricFamily,
    ),
    Family(
        "convictions_total",
        "Messages convicted",
        lambda s, o: _quarantined(s, convicted=True),
        ("cause",),
        CounterMetricFamily,
    ),
    Family(
        "diversions_total",
        "Messages that went to quarantine without a conviction",
        lambda s, o: _quarantined(s, convicted=False),
        ("cause",),
        CounterMetricFamily,
    ),
    Family(
        "acquittals_total",
        "Candidates, released messages among them, that ended alive",
        lambda s, o: s.counts.get("cleared", 0),
        kind=CounterMetricFamily,
    ),
    Family(
        "notifications_total",
        "Notifications to the receivers of poison_notify, by outcome",
        lambda s, o: [((word,), s.counts.get(f"notified:{word}", 0)) for word in ("sent", "failed")],
        ("outcome",),
        CounterMetricFamily,
    ),
    Family(
        "recovery_seconds",
        "From a worker's last sign of life until everything of it was put back",
        lambda s, o: _recoveries(s),
        kind=HistogramMetricFamily,
    ),
    Family(
        "queue_messages",
        "Messages of a queue: waiting at the broker, parked in the ledger, candidates (wherever they are)",
        lambda s, o: _in_queues(o),
        ("queue", "where"),
    ),
    Family(
        "queue_limit_messages",
        "Messages that may wait in a queue, of those that have a limit",
        lambda s, o: [((each.queue,), each.limit) for each in o.queues if each.limit is not None],
        ("queue",),
    ),
    Family("journal_entries", "Entries of the journal", lambda s, o: o.journal),
    Family(
        "journal_lag_seconds",
        "Age of the oldest entry of the journal, 0 when it is empty",
        lambda s, o: s.journal_age,
    ),
    Family("snapshot_seconds", "How long the newest look took", lambda s, o: s.took),
)
#: About the looking itself: each reads the exporter.
HEALTH = (
    Family("up", "1 if the ledger answers, 0 if these metrics are out of date", lambda exporter: exporter.up),
    Family("snapshot_age_seconds", "How old these metrics are", lambda exporter: exporter.age),
    Family(
        "snapshot_errors_total",
        "Looks at the ledger that failed, in this process",
        lambda exporter: exporter.errors,
        kind=CounterMetricFamily,
    ),
)
