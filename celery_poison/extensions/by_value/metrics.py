"""Metrics of holds by value, and of their cost."""

from __future__ import annotations

from typing import Any

from prometheus_client.core import CounterMetricFamily

from celery_poison.extensions.by_value.value_holds import Work
from celery_poison.metrics.family import Family


def _work(overview: Any) -> Work:
    shown = overview.panel("value_holds")
    return shown["work"] if shown else Work()


def _holds(overview: Any) -> list[Any]:
    shown = overview.panel("value_holds")
    return shown["holds"] if shown else []


FAMILIES = (
    Family("value_holds", "Holds by value that are not lifted", lambda s, o: len(_holds(o))),
    Family(
        "value_hold_looks_total",
        "Messages that were held against conditions of holds by value",
        lambda s, o: _work(o).looks,
        kind=CounterMetricFamily,
    ),
    Family(
        "value_hold_seconds_total",
        "Time that this took in the main processes of workers",
        lambda s, o: _work(o).nanoseconds / 1e9,
        kind=CounterMetricFamily,
    ),
    Family(
        "value_hold_let_go_total",
        "Messages that ran although a hold by value may catch them: unreadable, or Redis was away",
        lambda s, o: _work(o).let_go,
        kind=CounterMetricFamily,
    ),
)
