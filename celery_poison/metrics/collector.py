"""The thread that looks at the ledger, and what tells prometheus_client of it: nobody else waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate

from celery.utils.log import get_logger
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_poison.metrics.families import FAMILIES, HEALTH, PREFIX, Family, Health, Kind, Rows, Sample
from celery_poison.quarantine.read_model import Snapshot

logger = get_logger("celery_poison")

#: After so many intervals without a new snapshot, the last one counts as out of date.
PATIENCE = 3


class Sampler:
    """Calls ``look`` every ``interval`` seconds in a daemon thread, and keeps its newest result.

    Args:
        look: may block and may raise; both are told in ``sample().up``.
    """

    def __init__(self, look: Callable[[], Snapshot], interval: float) -> None:
        self._look = look
        self._interval = interval
        self._latest: tuple[Snapshot | None, float] = (None, time.monotonic())
        self._succeeded: bool | None = None
        self._errors = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="poison-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the look that may be under way; does not wait for it."""
        self._stopped.set()

    def sample(self) -> Sample:
        """Return the newest, at once: never waits for Redis."""
        snapshot, taken_at = self._latest
        age = time.monotonic() - taken_at
        late = age > PATIENCE * self._interval + (snapshot.took if snapshot else 0.0)
        up = False if late else self._succeeded
        return Sample(snapshot, age, up, self._errors)

    def _work(self) -> None:
        while not self._stopped.is_set():
            self._try_to_look()
            self._stopped.wait(self._interval)

    def _try_to_look(self) -> None:
        try:
            snapshot = self._look()
        except Exception as error:
            self._errors += 1
            if self._succeeded is not False:
                logger.warning("celery_poison: metrics are not up to date: %s", error)
            self._succeeded = False
        else:
            self._latest = (snapshot, time.monotonic())
            self._succeeded = True


class SnapshotCollector(Collector):
    """Tells what ``sampler`` saw last."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def describe(self) -> Iterator[Metric]:
        """Yield the names only: a registry asks when this is registered."""
        return (_metric(each) for each in (*FAMILIES, *HEALTH))

    def collect(self) -> Iterator[Metric]:
        sample = self._sampler.sample()
        for health in HEALTH:
            number = health.read(sample)
            if number is not None:
                yield _filled(_metric(health), [((), number)])
        if sample.snapshot is not None and sample.snapshot.overview is not None:
            for family in FAMILIES:
                yield _filled(_metric(family), family.rows(sample.snapshot, sample.snapshot.overview))


_Fillable = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
_KINDS: dict[Kind, Callable[..., _Fillable]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _metric(of: Family | Health) -> _Fillable:
    labels = of.labels if isinstance(of, Family) else ()
    return _KINDS[of.kind](PREFIX + of.name, of.says, labels=labels)


def _filled(metric: _Fillable, rows: Rows) -> Metric:
    if isinstance(metric, HistogramMetricFamily):
        *buckets, (_, total) = rows
        bounds = [bound.replace("inf", "+Inf") for (bound,), _ in buckets]
        sums = accumulate(number for _, number in buckets)
        metric.add_metric((), buckets=[*zip(bounds, sums, strict=True)], sum_value=total)
        return metric
    for labels, number in rows:
        metric.add_metric(labels, float(number))
    return metric
