"""Reading the ledger: lists, single records, workers and incidents. Changes nothing."""

from __future__ import annotations

from celery_poison.ledger.reading.fleet import Fleet
from celery_poison.ledger.reading.journal import Journal
from celery_poison.ledger.reading.messages import Messages
from celery_poison.ledger.reading.owner import Owner
from celery_poison.ledger.reading.parked import ParkedMessages
from celery_poison.ledger.reading.totals import Totals


class Queries(Messages, ParkedMessages, Fleet, Totals, Journal, Owner):
    """Typed views of one ledger; every method raises ``LedgerUnavailable`` when Redis is away."""
