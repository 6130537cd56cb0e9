"""Says aloud what was decided: one log line, one signal and one event for Flower for each fact.

Flower knows a few fields only, so that the story goes into ``exception`` and ``result``. A quarantined
task gets the state QUARANTINED; ``task-retried`` brings it back among the waiting ones.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_poison import causes, signals

logger = get_logger("celery_poison")


class Announcer:
    """Speaks for one worker.

    Args:
        consumer: returns the current consumer, whose event dispatcher is used.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def candidate(self, id: str, task: str, cause: str, crashes: int) -> None:
        story = causes.describe(cause)
        logger.error("Task %s[%s] %s; it is a blacklist candidate now (death %d)", task, id, story, crashes)
        self._event("task-retried", id, exception=f"celery_poison: {story}", traceback="")
        _send(signals.message_candidate, message={"id": id, "task": task}, cause=cause)

    def quarantined(self, id: str, task: str, cause: str, reason: str) -> None:
        logger.error("Task %s[%s] is in quarantine now: %s", task, id, reason)
        self._event("task-quarantined", id, exception=f"celery_poison: {reason}", result=reason, traceback="")
        _send(signals.message_quarantined, message={"id": id, "task": task}, cause=cause, reason=reason)

    def released(self, id: str) -> None:
        self._event("task-retried", id, exception="celery_poison: released from quarantine", traceback="")

    def failed(self, id: str, reason: str) -> None:
        self._event("task-failed", id, exception=f"celery_poison: {reason}", traceback="")

    def _event(self, kind: str, id: str, **fields: Any) -> None:
        dispatcher = getattr(self._consumer(), "event_dispatcher", None)
        if dispatcher is not None and dispatcher.enabled:
            dispatcher.send(kind, uuid=id, **fields)


def _send(signal: Any, **arguments: Any) -> None:
    # Celery's signals catch and log what their receivers raise.
    signal.send(sender=None, **arguments)
