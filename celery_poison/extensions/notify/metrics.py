"""What metrics say of notifications."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily

from celery_poison.metrics.family import Family

FAMILIES = (
    Family(
        "notifications_total",
        "Notifications to the receivers of poison_notify, by outcome",
        lambda s, o: [((word,), s.counts.get(f"notified:{word}", 0)) for word in ("sent", "failed")],
        ("outcome",),
        CounterMetricFamily,
    ),
)
