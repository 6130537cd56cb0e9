"""Gives the newest snapshot to prometheus_client; touches Redis in no case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from celery_poison.metrics.families import FAMILIES, HEALTH, PREFIX, Kind, Rows
from celery_poison.metrics.sampler import Sampler


class SnapshotCollector(Collector):
    """Tells what ``sampler`` saw last."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def describe(self) -> Iterator[Metric]:
        """Yield the names only: a registry asks when this is registered."""
        for family in FAMILIES:
            yield _metric(family.name, family.kind, family.says, family.labels)
        for health in HEALTH:
            yield _metric(health.name, health.kind, health.says, ())

    def collect(self) -> Iterator[Metric]:
        sample = self._sampler.sample()
        for health in HEALTH:
            number = health.read(sample)
            if number is not None:
                yield _filled(_metric(health.name, health.kind, health.says, ()), [((), number)])
        if sample.snapshot is not None and sample.snapshot.overview is not None:
            for family in FAMILIES:
                metric = _metric(family.name, family.kind, family.says, family.labels)
                yield _filled(metric, family.rows(sample.snapshot, sample.snapshot.overview))


_Fillable = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
_KINDS: dict[Kind, Callable[..., _Fillable]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _metric(name: str, kind: Kind, says: str, labels: tuple[str, ...]) -> _Fillable:
    return _KINDS[kind](PREFIX + name, says, labels=labels)


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
