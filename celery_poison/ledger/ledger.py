"""The ledger: every transition, one typed method for each Lua script."""

from __future__ import annotations

from celery_poison.ledger.decisions import Decisions
from celery_poison.ledger.fleet import FleetBook
from celery_poison.ledger.messages import MessageTransitions


class Ledger(MessageTransitions, Decisions, FleetBook):
    """Transitions of messages and workers, each atomic, each journalled in the same step.

    Args: see :class:`celery_poison.ledger.calling.Caller`.

    Every method raises ``LedgerUnavailable`` when Redis is away or refuses the write.
    """
