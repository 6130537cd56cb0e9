"""Every metric: its name, what it says, its labels, and where in a snapshot it stands.

docs/monitoring.md tells them too, and a test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from celery_poison import causes
from celery_poison.ledger.fleet import RECOVERY_BOUNDS
from celery_poison.quarantine.overview import Overview
from celery_poison.quarantine.read_model import Snapshot

PREFIX = "celery_poison_"

#: Values of the labels, in their order, and the number.
Rows = Iterable[tuple[tuple[str, ...], float]]


class Kind(StrEnum):
    """The kinds of metrics that Prometheus knows, as far as they are used here."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: without ``celery_poison_``; of a counter with ``_total``.
        rows: of a histogram the buckets, not cumulated, by their upper bound, and last the sum.
    """

    name: str
    kind: Kind
    says: str
    labels: tuple[str, ...]
    rows: Callable[[Snapshot, Overview], Rows]


def _gauge(name: str, says: str, read: Callable[[Snapshot, Overview], float]) -> Family:
    return Family(name, Kind.GAUGE, says, (), lambda s, o: [((), read(s, o))])


def _by(kind: Kind, name: str, says: str, label: str, rows: Callable[[Snapshot, Overview], Rows]) -> Family:
    return Family(name, kind, says, (label,), rows)


def _workers(overview: Overview) -> Rows:
    stopping, alive = overview.stopping, overview.alive
    return [(("alive",), alive - stopping), (("stopping",), stopping), (("silent",), overview.dead)]


def _by_cause(
    counts: Mapping[str, int], what: str, expected: Iterable[str]
) -> Iterator[tuple[tuple[str], int]]:
    # A counter that appears at 1 has risen by nothing, as Prometheus sees it: so it begins at 0.
    found = Counter(dict.fromkeys(expected, 0))
    for name, number in counts.items():
        event, _, cause = name.partition(":")
        if event == what and cause:
            found[cause if causes.is_known(cause) else "(other)"] += number
    return (((cause,), number) for cause, number in sorted(found.items()))


def _quarantined(snapshot: Snapshot, *, convicted: bool) -> Rows:
    expected = (*causes.DEATHS, causes.FAILURES) if convicted else causes.NO_CONVICTIONS
    rows = _by_cause(snapshot.counts, "quarantined", expected)
    return [row for row in rows if (row[0][0] not in causes.NO_CONVICTIONS) is convicted]


def _waiting(overview: Overview) -> Rows:
    waiting = Counter[str]()
    for lane in overview.outbox:
        waiting[lane.queue] += lane.waiting
    return [((queue,), number) for queue, number in sorted(waiting.items())]


def _in_database(overview: Overview, *, age: bool) -> Rows:
    rows = overview.outbox_database
    if rows is None or rows.rows is None:  # whoever cannot read them says nothing
        return []
    return [((), max(0.0, overview.at - (rows.oldest or overview.at)) if age else rows.rows)]


def _recoveries(snapshot: Snapshot) -> Rows:
    bounds = [*map(str, RECOVERY_BOUNDS), "inf"]
    buckets = [((bound,), float(snapshot.counts.get(f"recovered:{bound}", 0))) for bound in bounds]
    return [*buckets, (("sum",), snapshot.counts.get("recovered_ms", 0) / 1000)]


def _in_queues(overview: Overview) -> Rows:
    for each in overview.queues:
        numbers = {"waiting": each.waiting, "parked": each.parked, "candidates": each.candidates}
        yield from (((each.queue, where), n) for where, n in numbers.items() if n is not None)


FAMILIES = (
    Family(
        "quarantine_messages",
        Kind.GAUGE,
        "Messages in quarantine (NDLV)",
        ("task", "cause", "queue"),
        lambda s, o: s.series.items(),
    ),
    _gauge(
        "quarantine_oldest_seconds",
        "For how long the oldest message has been in quarantine, 0 when there is none",
        lambda s, o: max(0.0, o.at - (s.oldest or o.at)),
    ),
    _gauge(
        "given_up_messages", "Messages that were given up and are still kept (FAIL)", lambda s, o: o.failed
    ),
    _gauge(
        "candidates", "Messages that are flagged as candidates, waiting or running", lambda s, o: o.candidates
    ),
    _gauge("trials", "Suspects that run alone at this moment", lambda s, o: s.trials),
    _gauge("running", "Messages that workers have in their hands", lambda s, o: o.running),
    _gauge(
        "parked",
        "Messages that wait in the ledger: until an earlier start ends, or on their way to the trial queue",
        lambda s, o: o.parked,
    ),
    _by(
        Kind.GAUGE,
        "stuck_messages",
        "Messages that nobody works on, and that should have gone on by now; of each kind at most 1000",
        "kind",
        lambda s, o: [((kind,), number) for kind, number in o.stranded.counts.items()],
    ),
    _by(
        Kind.GAUGE,
        "outbox_messages",
        "Messages that wait in the outbox, by the queue that they go to",
        "queue",
        lambda s, o: _waiting(o),
    ),
    Family(
        "outbox_database_messages",
        Kind.GAUGE,
        "Messages that wait in your own database, where it can be read from here",
        (),
        lambda s, o: _in_database(o, age=False),
    ),
    Family(
        "outbox_database_oldest_seconds",
        Kind.GAUGE,
        "For how long the first of them has been there, 0 when none waits",
        (),
        lambda s, o: _in_database(o, age=True),
    ),
    _gauge(
        "outbox_blocked",
        "Queues to which sending from the outbox is blocked, or that of a task",
        lambda s, o: len({lane.queue for lane in o.outbox if lane.blocked}),
    ),
    _gauge(
        "outbox_unsent",
        "Messages tied to the success of a task that could not be sent, and wait for a person",
        lambda s, o: o.unsent,
    ),
    _by(Kind.GAUGE, "workers", "Workers that guard messages, by state", "state", lambda s, o: _workers(o)),
    _gauge(
        "deaf_workers",
        "Workers that live and consume nothing, while messages wait for them",
        lambda s, o: len(o.deaf),
    ),
    _gauge(
        "open_incidents",
        "Dead workers whose messages are still being put back",
        lambda s, o: len(o.open_incidents),
    ),
    _gauge(
        "fleet_gate_closed",
        "1 while the fleet gate is closed: only a death on trial convicts",
        lambda s, o: o.gate.closed,
    ),
    _gauge("monitor_present", "1 if somebody watches the workers", lambda s, o: bool(o.monitor)),
    _gauge(
        "unguarded_tasks",
        "Tasks that present workers ran without the ledger's knowledge; 0 again ten minutes after the last",
        lambda s, o: o.unguarded,
    ),
    _gauge(
        "ledger_errors",
        "Errors of the ledger that present workers counted; 0 again ten minutes after the last",
        lambda s, o: o.ledger_errors,
    ),
    _by(
        Kind.COUNTER,
        "crashes_total",
        "Starts that died",
        "cause",
        lambda s, o: _by_cause(s.counts, "crashed", causes.DEATHS),
    ),
    _by(
        Kind.COUNTER,
        "convictions_total",
        "Messages convicted",
        "cause",
        lambda s, o: _quarantined(s, convicted=True),
    ),
    _by(
        Kind.COUNTER,
        "diversions_total",
        "Messages that went to quarantine without a conviction",
        "cause",
        lambda s, o: _quarantined(s, convicted=False),
    ),
    Family(
        "acquittals_total",
        Kind.COUNTER,
        "Candidates, released messages among them, that ended alive",
        (),
        lambda s, o: [((), s.counts.get("cleared", 0))],
    ),
    _by(
        Kind.COUNTER,
        "notifications_total",
        "Notifications to the receivers of poison_notify, by outcome",
        "outcome",
        lambda s, o: [((word,), s.counts.get(f"notified:{word}", 0)) for word in ("sent", "failed")],
    ),
    Family(
        "recovery_seconds",
        Kind.HISTOGRAM,
        "From a worker's last sign of life until everything of it was put back",
        (),
        lambda s, o: _recoveries(s),
    ),
    Family(
        "queue_messages",
        Kind.GAUGE,
        "Messages of a queue: waiting at the broker, parked in the ledger, candidates (wherever they are)",
        ("queue", "where"),
        lambda s, o: _in_queues(o),
    ),
    _by(
        Kind.GAUGE,
        "queue_limit_messages",
        "Messages that may wait in a queue, of those that have a limit",
        "queue",
        lambda s, o: [((each.queue,), each.limit) for each in o.queues if each.limit is not None],
    ),
    _gauge("journal_entries", "Entries of the journal", lambda s, o: o.journal),
    _gauge(
        "journal_lag_seconds",
        "Age of the oldest entry of the journal, 0 when it is empty",
        lambda s, o: s.journal_age,
    ),
    _gauge("snapshot_seconds", "How long the newest look took", lambda s, o: s.took),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known at this moment.

    Attributes:
        snapshot: the newest; None before the first.
        age: seconds since it was taken.
        up: whether the last look succeeded, and not too long ago; None while the first look is under way.
        errors: looks that failed so far.
    """

    snapshot: Snapshot | None
    age: float
    up: bool | None
    errors: int


@dataclass(frozen=True, slots=True)
class Health:
    """A metric about the looking itself; ``read`` returns None when there is nothing to say yet."""

    name: str
    kind: Kind
    says: str
    read: Callable[[Sample], float | None]


HEALTH = (
    Health(
        "up", Kind.GAUGE, "1 if the ledger answers, 0 if these metrics are out of date", lambda each: each.up
    ),
    Health(
        "snapshot_age_seconds",
        Kind.GAUGE,
        "How old these metrics are",
        lambda each: each.age if each.snapshot else None,
    ),
    Health(
        "snapshot_errors_total",
        Kind.COUNTER,
        "Looks at the ledger that failed, in this process",
        lambda each: each.errors,
    ),
)
