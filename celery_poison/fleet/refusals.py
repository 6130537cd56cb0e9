"""Queues and messages that are left alone for a while, since they could not be published."""

from __future__ import annotations

import time

from celery.utils.log import get_logger

from celery_poison.broker.port import NotPublished
from celery_poison.keep.stored_message import PublishRefused

logger = get_logger("celery_poison")

#: Seconds before a queue that refused is tried again.
REFUSED_FOR = 5.0


class Refusals:
    """Names the queues, and the messages, that are left alone for a while after they could not be served.

    Args:
        story: what is logged before the reason, once for each.
    """

    def __init__(self, story: str) -> None:
        self._story = story
        self._until: dict[str, float] = {}
        self._complained: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._until.get(name, 0.0) > time.monotonic()

    def note(self, name: str, error: Exception) -> None:
        now = time.monotonic()
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._until[name] = now + REFUSED_FOR
        if str(error) not in self._complained:
            self._complained.add(str(error))
            # Only what brokers say is expected.
            expected = isinstance(error, (NotPublished, PublishRefused))
            logger.warning("celery_poison: %s: %s", self._story, error, exc_info=None if expected else error)
