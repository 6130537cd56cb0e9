"""What Prometheus sees: one background thread looks at the ledger, everything that is scraped is what it saw.

family.py     one metric: its name, its labels, and how it is read
families.py   all of them, and where in a snapshot of the read model each stands
exporter.py   looks every few seconds; for a registry (Flower), or behind a port (``celery poison monitor``)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery

from celery_poison.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from celery_poison.metrics.exporter import Exporter

__all__ = ["register"]


def register(app: Celery, *, interval: float = 10.0, registry: CollectorRegistry | None = None) -> Exporter:
    """Export the metrics of ``app``'s ledger, beginning now; Redis may be away. Safe to call again.

    Args:
        interval: seconds between two looks at the ledger.
        registry: default: that of the process, which Flower's ``/metrics`` serves.

    Raises:
        ConfigurationError: prometheus_client is not installed, a setting is wrong, or this process exports
            the metrics of another app already.
    """
    try:
        from prometheus_client import REGISTRY
    except ModuleNotFoundError:
        missing = "metrics need prometheus_client: pip install 'celery-poison[metrics]'"
        raise ConfigurationError(missing) from None
    from celery_poison.metrics.exporter import export

    return export(app, interval, registry or REGISTRY)
