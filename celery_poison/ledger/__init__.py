"""The one truth: everything celery_poison knows about messages and workers, kept in Redis.

This room knows nothing of Celery. Reading order: ``keys``, ``lua/`` (one file a transition), ``scripts``;
what is written: ``messages``, ``quarantine``, ``fleet``, ``policies``, ``outbox``; what is read: ``queries``;
``writer`` (the unanswered writes of the hot path), ``durability`` (those that are waited for); ``journal``.
"""

from celery_poison.ledger.fleet import FleetTransitions
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.messages import MessageTransitions
from celery_poison.ledger.outbox import OutboxTransitions
from celery_poison.ledger.policies import PolicyTransitions
from celery_poison.ledger.quarantine import QuarantineTransitions

__all__ = ["Keys", "Ledger"]


class Ledger(
    MessageTransitions,
    QuarantineTransitions,
    FleetTransitions,
    PolicyTransitions,
    OutboxTransitions,
):
    """Transitions of messages and workers, each atomic, each journalled in the same step.

    It is put together from rooms that know nothing of each other: each stands on ``Caller`` alone.

    Args: see :class:`celery_poison.ledger.scripts.Caller`.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses the write.
    """
