"""One metric: its name, what it says, its labels, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

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
        """Return the metric without a number."""
        return self.kind(PREFIX + self.name, self.says, labels=self.labels)

    def filled(self, *seen: Any) -> Fillable:
        """Return the metric with the numbers that ``read`` finds."""
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
