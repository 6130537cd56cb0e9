"""How each fault is done. Importing this enters them all into the list."""

from celery_poison.chaos.faults import messages, network, servers, workers
from celery_poison.chaos.faults.kind import KINDS, possible

__all__ = ["KINDS", "possible", "messages", "network", "servers", "workers"]
