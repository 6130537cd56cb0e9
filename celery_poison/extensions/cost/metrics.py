"""Metrics of the cost of deaths."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily

from celery_poison import causes
from celery_poison.desk.overview import Overview
from celery_poison.extensions.cost.losses import Losses
from celery_poison.metrics.family import Family, Rows


def _by_cause_and_task(overview: Overview, measure: str, divisor: int) -> Rows:
    losses: Losses | None = overview.panel("cost")
    found = Counter[tuple[str, str]]()
    for (cause, task), loss in losses.ever.items() if losses else ():
        known = cause if causes.is_known(cause) else "(other)"
        found[known, task or "(other)"] += getattr(loss, measure)
    return [(labels, number / divisor) for labels, number in sorted(found.items())]


FAMILIES = (
    Family(
        "cut_off_seconds_total",
        "Run time of runs that were cut off, as far as it is on record: at least, where their worker died",
        lambda s, o: _by_cause_and_task(o, "ms", 1000),
        ("cause", "task"),
        CounterMetricFamily,
    ),
    Family(
        "cut_off_unknown_total",
        "Runs that were cut off, and whose run time is not on record",
        lambda s, o: _by_cause_and_task(o, "unknown", 1),
        ("cause", "task"),
        CounterMetricFamily,
    ),
)
