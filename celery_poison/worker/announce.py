"""What a worker tells people: a log line, a signal and an event for Flower for each fact; its own errors.

Flower knows a few fields only, so that the story goes into ``exception`` and ``result``. A quarantined task
gets the state QUARANTINED, which outranks STARTED; ``task-retried`` brings it back among the waiting ones. No
event may have a field named ``worker``.
"""

from __future__ import annotations

from logging import ERROR, WARNING
from typing import Any
from urllib.parse import quote

from celery.utils.log import get_logger

from celery_poison import causes, signals
from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.ledger.notices import Fact, Notice

logger = get_logger("celery_poison")


class Complaints:
    """Takes the errors of one worker's plugin: each is counted, each kind of it is logged once.

    Attributes:
        count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def __call__(self, error: Exception) -> None:
        self.count += 1
        kind = f"{type(error).__name__}: {str(error).split(':')[0]}"
        if kind not in self._logged:
            self._logged.add(kind)
            known = isinstance(error, (LedgerUnavailable, ConfigurationError))
            sentence = "celery_poison: %s; tasks go on (logged once, counted in status)"
            logger.log(WARNING if known else ERROR, sentence, error, exc_info=None if known else error)


#: Fact -> the event that shows it.
_EVENTS = {
    Fact.CANDIDATE: "task-retried",
    Fact.RELEASED: "task-retried",
    Fact.FAILED: "task-failed",
    Fact.DISCARDED: "task-discarded",
}

#: Argument of a signal -> the field that says it in an event, where ``worker`` is Flower's own.
_FIELDS = {"worker": "incarnation"}


def where_to_look(id: str) -> str:
    """Return where a person finds a task's story: the page in Flower, and the command."""
    return f"see /poison/task/{quote(id, safe='')} in Flower, or: celery -A ... poison show {id}"


class Announcer:
    """Speaks for one worker.

    Args:
        consumer: returns the current consumer, whose event dispatcher is used.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    @property
    def is_heard(self) -> bool:
        """Whether somebody listens to events."""
        return self._dispatcher() is not None

    def candidate(self, id: str, task: str, cause: str, crashes: int) -> None:
        story = causes.describe(cause)
        logger.error("Task %s[%s] %s; it is a blacklist candidate now (death %d)", task, id, story, crashes)
        self.news(Notice(id, Fact.CANDIDATE, story))
        _send(signals.message_candidate, message={"id": id, "task": task}, cause=cause)

    def quarantined(self, id: str, task: str, cause: str, reason: str) -> None:
        logger.error("Task %s[%s] is in quarantine now: %s", task, id, reason)
        self._event("task-quarantined", id, reason, result=reason)
        _send(signals.message_quarantined, message={"id": id, "task": task}, cause=cause, reason=reason)

    def news(self, news: Notice) -> None:
        """Tell Flower of what somebody else did or decided."""
        said = "released from quarantine" if news.fact is Fact.RELEASED else news.story
        self._event(_EVENTS[news.fact], news.id, said)

    def fleet(self, name: str, facts: dict[str, Any]) -> None:
        """Tell as an event what a signal tells of a worker, the monitor or the fleet gate (EMS-5)."""
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            kind = "poison-" + name.removeprefix("fleet_").replace("_", "-")
            dispatcher.send(kind, **{_FIELDS.get(field, field): fact for field, fact in facts.items()})

    def _event(self, kind: str, id: str, story: str, **fields: str) -> None:
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            # No traceback: it would still be shown when the task has succeeded after all.
            told = f"celery_poison: {story}; {where_to_look(id)}"
            dispatcher.send(kind, uuid=id, exception=told, traceback="", **fields)

    def _dispatcher(self) -> Any:
        dispatcher = getattr(self._consumer(), "event_dispatcher", None)
        return dispatcher if dispatcher is not None and dispatcher.enabled else None


def _send(signal: Any, **arguments: Any) -> None:
    # Celery's signals catch and log what their receivers raise.
    signal.send(sender=None, **arguments)
