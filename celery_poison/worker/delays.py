"""A worker says whether messages with a countdown can fill it, at its start, and when they do."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from celery.worker.request import Request

from celery_poison.basics.text import some_of
from celery_poison.broker.kinds import broker_of
from celery_poison.portrait import LET_IT_DELAY
from celery_poison.worker.inflight import unchanged

logger = logging.getLogger(__name__)


class Delays:
    """Says it of one worker, once."""

    _has_said = False

    def say(self, consumer: Any) -> bool:
        """Name the queues whose delayed messages take this worker's places, now that it is connected.

        Returns whether there are any.
        """
        try:
            names = broker_of(consumer.connection).filled_by_delays(consumer.app, consumer.connection)
        except Exception:  # a subclass of Celery's, or a broker of one's own: nothing depends on this
            logger.debug("celery_poison: cannot tell who delays messages", exc_info=True)
            return False
        if names and not self._has_said:
            self._has_said = True
            logger.warning(
                "celery_poison: messages with an ETA, a countdown or a retry's pause fill this worker: when"
                " it has as many of them as it prefetches, nothing else of %s runs; %s",
                *(some_of(names), LET_IT_DELAY),
            )
        return bool(names)


def can_lend(consumer: Any) -> bool:
    """Whether others may use the prefetch credit of a message that waits here, now that it is connected."""
    try:
        return not broker_of(consumer.connection).has_fixed_prefetch(consumer.app, consumer.connection)
    except Exception:  # as above
        logger.debug("celery_poison: cannot tell whether the prefetch can grow", exc_info=True)
        return True


def fills(consumer: Any) -> tuple[int, int]:
    """Return how many messages wait for their time here, and from how many queues it takes no more for that.

    What is prefetched counts for each queue. From any thread.
    """
    places = consumer.initial_prefetch_count
    later = [each.entry.args for each in unchanged(lambda: list(consumer.timer.schedule.queue))]
    waiting = [args[0] for args in later if args and isinstance(args[0], Request)]
    by_queue = Counter(str(each.delivery_info.get("consumer_tag")) for each in waiting)
    return len(waiting), sum(number >= places > 0 for number in by_queue.values())
