"""A worker says at its start whether messages with a countdown can fill it."""

from __future__ import annotations

import logging
from typing import Any

from celery_poison.basics.text import some_of
from celery_poison.broker.rabbitmq import LET_IT_DELAY, filled_by_delays

logger = logging.getLogger(__name__)


class Delays:
    """Says it of one worker, once."""

    _has_said = False

    def say(self, consumer: Any) -> None:
        """Name the queues whose delayed messages take this worker's places, now that it is connected."""
        if self._has_said:
            return
        self._has_said = True
        try:
            names = filled_by_delays(consumer.app, consumer.connection)
        except Exception:  # a subclass of Celery's, or a broker of one's own: nothing depends on this
            logger.debug("celery_poison: cannot tell who delays messages", exc_info=True)
            return
        if names:
            logger.warning(
                "celery_poison: messages with an ETA, a countdown or a retry's pause fill this worker: when"
                " it has as many of them as it prefetches, nothing else of %s runs; %s",
                *(some_of(names), LET_IT_DELAY),
            )
