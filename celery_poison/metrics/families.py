"""Every metric: its name, what it says, its labels, and where in a sample it stands.

docs/monitoring.md tells them too, and a test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from celery_poison import causes
from celery_poison.ledger.fleet import RECOVERY_BOUNDS
from celery_poison.metrics.sampler import Sample
from celery_poison.metrics.snapshot import Snapshot

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
    rows: Callable[[Snapshot], Rows]


def _one(number: float) -> Rows:
    return [((), number)]


def _workers(snapshot: Snapshot) -> Rows:
    states = Counter(
        "silent" if not worker.alive else "stopping" if worker.stopping else "alive"
        for worker in snapshot.workers
    )
    return [((state,), states[state]) for state in ("alive", "stopping", "silent")]


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


def _convictions(snapshot: Snapshot) -> Rows:
    rows = _by_cause(snapshot.counts, "quarantined", (*causes.DEATHS, causes.FAILURES))
    return [row for row in rows if row[0][0] not in causes.NO_CONVICTIONS]


def _diversions(snapshot: Snapshot) -> Rows:
    rows = _by_cause(snapshot.counts, "quarantined", causes.NO_CONVICTIONS)
    return [row for row in rows if row[0][0] in causes.NO_CONVICTIONS]


def _recoveries(snapshot: Snapshot) -> Rows:
    bounds = [*map(str, RECOVERY_BOUNDS), "inf"]
    buckets = [((bound,), float(snapshot.counts.get(f"recovered:{bound}", 0))) for bound in bounds]
    return [*buckets, (("sum",), snapshot.counts.get("recovered_ms", 0) / 1000)]


FAMILIES = (
    Family(
        "quarantine_messages",
        Kind.GAUGE,
        "Messages in quarantine (NDLV)",
        ("task", "cause", "queue"),
        lambda s: s.quarantined.items(),
    ),
    Family(
        "quarantine_oldest_seconds",
        Kind.GAUGE,
        "For how long the oldest message has been in quarantine, 0 when there is none",
        (),
        lambda s: _one(s.oldest),
    ),
    Family(
        "given_up_messages",
        Kind.GAUGE,
        "Messages that were given up and are still kept (FAIL)",
        (),
        lambda s: _one(s.totals["failed"]),
    ),
    Family(
        "candidates",
        Kind.GAUGE,
        "Messages that are flagged as candidates, waiting or running",
        (),
        lambda s: _one(s.totals["candidates"]),
    ),
    Family("trials", Kind.GAUGE, "Suspects that run alone at this moment", (), lambda s: _one(s.trials)),
    Family(
        "running",
        Kind.GAUGE,
        "Messages that workers have in their hands",
        (),
        lambda s: _one(s.totals["running"]),
    ),
    Family(
        "parked",
        Kind.GAUGE,
        "Messages that wait in the ledger: until an earlier start ends, or on their way to the trial queue",
        (),
        lambda s: _one(s.totals["parked"]),
    ),
    Family(
        "stuck_messages",
        Kind.GAUGE,
        "Messages that nobody works on, and that should have gone on by now; of each kind at most 1000",
        ("kind",),
        lambda s: [((kind,), number) for kind, number in s.stuck.items()],
    ),
    Family("workers", Kind.GAUGE, "Workers that guard messages, by state", ("state",), _workers),
    Family(
        "open_incidents",
        Kind.GAUGE,
        "Dead workers whose messages are still being put back",
        (),
        lambda s: _one(s.open_incidents),
    ),
    Family(
        "fleet_gate_closed",
        Kind.GAUGE,
        "1 while the fleet gate is closed: only a death on trial convicts",
        (),
        lambda s: _one(s.gate_closed),
    ),
    Family(
        "monitor_present",
        Kind.GAUGE,
        "1 if somebody watches the workers",
        (),
        lambda s: _one(bool(s.monitor)),
    ),
    Family(
        "unguarded_tasks",
        Kind.GAUGE,
        "Tasks that the present workers ran without the ledger's knowledge",
        (),
        lambda s: _one(sum(worker.unguarded for worker in s.workers)),
    ),
    Family(
        "ledger_errors",
        Kind.GAUGE,
        "Errors of the ledger that the present workers counted",
        (),
        lambda s: _one(sum(worker.ledger_errors for worker in s.workers)),
    ),
    Family(
        "crashes_total",
        Kind.COUNTER,
        "Starts that died",
        ("cause",),
        lambda s: _by_cause(s.counts, "crashed", causes.DEATHS),
    ),
    Family("convictions_total", Kind.COUNTER, "Messages convicted", ("cause",), _convictions),
    Family(
        "diversions_total",
        Kind.COUNTER,
        "Messages that went to quarantine without a conviction",
        ("cause",),
        _diversions,
    ),
    Family(
        "acquittals_total",
        Kind.COUNTER,
        "Candidates, released messages among them, that ended alive",
        (),
        lambda s: _one(s.counts.get("cleared", 0)),
    ),
    Family(
        "recovery_seconds",
        Kind.HISTOGRAM,
        "From a worker's death until everything of it was put back",
        (),
        _recoveries,
    ),
    Family(
        "journal_entries",
        Kind.GAUGE,
        "Entries of the journal",
        (),
        lambda s: _one(s.totals["journal"]),
    ),
    Family(
        "journal_lag_seconds",
        Kind.GAUGE,
        "Age of the oldest entry of the journal, 0 when it is empty",
        (),
        lambda s: _one(s.journal_age),
    ),
    Family("snapshot_seconds", Kind.GAUGE, "How long the newest look took", (), lambda s: _one(s.took)),
)


@dataclass(frozen=True, slots=True)
class Health:
    """A metric about the looking itself; ``read`` returns None when there is nothing to say yet."""

    name: str
    kind: Kind
    says: str
    read: Callable[[Sample], float | None]


HEALTH = (
    Health(
        "up",
        Kind.GAUGE,
        "1 if the ledger answers, 0 if these metrics are out of date",
        lambda sample: sample.up,
    ),
    Health(
        "snapshot_age_seconds",
        Kind.GAUGE,
        "How old these metrics are",
        lambda sample: sample.age if sample.snapshot else None,
    ),
    Health(
        "snapshot_errors_total",
        Kind.COUNTER,
        "Looks at the ledger that failed, in this process",
        lambda sample: sample.errors,
    ),
)
