"""Lets a live worker tell Flower what a person decided; the decision stands whether that works or not."""

from __future__ import annotations

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.ledger.queries import Queries
from celery_poison.records import MessageRecord

logger = get_logger(__name__)


def announce(app: Celery, queries: Queries, activation_ms: int, verb: str, record: MessageRecord) -> None:
    """Ask one live worker to send the event for ``verb``; without any, nobody is told."""
    try:
        alive = [w.node for w in queries.workers(activation_ms) if w.alive and not w.stopping]
        if alive:
            told = {"verb": verb, "id": record.id, "reason": record.story}
            app.control.broadcast("poison_announce", arguments=told, destination=alive[-1:])
    except Exception as error:
        logger.debug("celery_poison: no worker could be asked to announce %s: %s", verb, error)
