"""What Prometheus sees: one background thread looks at the ledger, everything that is scraped is what it saw.

sampler.py    the thread that looks, every few seconds
families.py   each metric: its name, its labels, and where in a snapshot it stands
collector.py  gives them to prometheus_client
exporter.py   puts it into a registry (Flower), or behind a port (``celery poison monitor``)
"""

from celery_poison.metrics.exporter import Exporter, register

__all__ = ["Exporter", "register"]
