"""The one truth: everything celery_poison knows about messages and workers, kept in Redis.

This room knows nothing of Celery. Reading order: ``keys``, ``lua/`` (one file per transition),
``scripts``, ``ledger`` (made of ``attempts``, ``decisions`` and ``fleet``), ``queries``,
``writer`` (the unanswered writes of the hot path).
"""

from celery_poison.ledger.keys import Keys
from celery_poison.ledger.ledger import Ledger

__all__ = ["Keys", "Ledger"]
