"""What Prometheus sees: one background thread looks at the ledger, everything that is scraped is what it saw.

families.py   each metric: its name, its labels, and where in a snapshot of the read model it stands
collector.py  the thread that looks, every few seconds, and what gives prometheus_client what it saw
exporter.py   puts it into a registry (Flower), or behind a port (``celery poison monitor``)
"""

from celery_poison.metrics.exporter import Exporter, register

__all__ = ["Exporter", "register"]
