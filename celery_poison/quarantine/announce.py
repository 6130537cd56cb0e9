"""Leaves word of a decision for Flower; the decision stands whether that works or not."""

from __future__ import annotations

from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.notices import Fact, Notice, leave_notice
from celery_poison.model import MessageRecord

logger = get_logger(__name__)


def tell_flower(ledger: Ledger, verb: str, record: MessageRecord) -> None:
    """Let a worker send the event for ``verb``: one that lives, or the next one that does."""
    if verb in [*Fact]:
        try:
            leave_notice(ledger, Notice(record.id, Fact(verb), record.story, record.mid))
        except LedgerUnavailable as error:
            logger.debug("celery_poison: nobody will announce %s: %s", verb, error)
