"""Every metric: what it says, its labels, and where in a snapshot it stands.

docs/monitoring.md tells them too, and a test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from celery_poison import causes
from celery_poison.basics.rooms import rooms_with
from celery_poison.desk.overview import Overview
from celery_poison.desk.read_model import Snapshot
from celery_poison.ledger.fleet import RECOVERY_BOUNDS
from celery_poison.metrics.family import Family, Rows


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


def _recoveries(snapshot: Snapshot) -> Rows:
    bounds = [*map(str, RECOVERY_BOUNDS), "inf"]
    buckets = [((bound,), float(snapshot.counts.get(f"recovered:{bound}", 0))) for bound in bounds]
    return [*buckets, (("sum",), snapshot.counts.get("recovered_ms", 0) / 1000)]


def _in_queues(overview: Overview) -> Rows:
    for each in overview.queues:
        numbers = {"waiting": each.waiting, "parked": each.parked, "candidates": each.candidates}
        yield from (((each.queue, where), n) for where, n in numbers.items() if n is not None)


_OF_THE_CORE = (
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
    Family("journal_entries", "Entries of the journal", lambda s, o: o.journal),
    Family(
        "journal_lag_seconds",
        "Age of the oldest entry of the journal, 0 when it is empty",
        lambda s, o: s.journal_age,
    ),
    Family("snapshot_seconds", "How long the newest look took", lambda s, o: s.took),
)
#: With those of extensions. Each reads a snapshot of the read model, and the overview in it.
FAMILIES = (*_OF_THE_CORE, *(each for room in rooms_with("metrics") for each in room.FAMILIES))
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
