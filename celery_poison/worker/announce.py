"""What a worker tells people: a log line, a signal and an event for Flower for each fact; its own errors.

Flower knows a few fields only, so that the story goes into ``exception`` and ``result``. A quarantined task
gets the state QUARANTINED, which outranks STARTED; ``task-retried`` brings it back among the waiting ones. No
event may have a field named ``worker``.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import ERROR, INFO, WARNING
from typing import Any
from urllib.parse import quote

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import causes, signals
from celery_poison.basics.text import (
    argument,
    clean,
    command,
    count_of,
    literal,
    short,
    some_of,
    version,
    without_secrets,
)
from celery_poison.cells.trial import PoolFacts
from celery_poison.errors import ConfigurationError, GivenUp, LedgerUnavailable
from celery_poison.ledger.notices import SUSPECTED, Fact, Notice
from celery_poison.model import MessageRecord
from celery_poison.plugin import BUILT_IN, plugin_of
from celery_poison.policy import Policy
from celery_poison.upstream.requests import acks_end
from celery_poison.worker.threads import EventLoop

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
            expected = isinstance(error, (LedgerUnavailable, ConfigurationError))
            sentence = "celery_poison: %s; tasks go on (logged once, counted in status)"
            logger.log(WARNING if expected else ERROR, sentence, error, exc_info=None if expected else error)


#: Fact -> the event that shows it.
_EVENTS = {
    Fact.CANDIDATE: "task-retried",
    Fact.RELEASED: "task-retried",
    Fact.FAILED: "task-failed",
    Fact.DISCARDED: "task-discarded",
}


def greet(app: Celery, pool: PoolFacts) -> None:
    """Say in one line what is guarded from now on, and where the ledger is."""
    plugin = plugin_of(app)
    guarded, observed, others = plugin.guarded, plugin.observed, plugin.unguarded
    told = [f"{guarded - len(observed)} of {count_of(guarded + len(others), 'task')} guarded"]
    told += [f"{len(observed)} only observed ({some_of(observed)})"] if observed else []
    told += [f"not: {some_of(others)}"] if others else []
    told += ["observe only"] if plugin.settings.observe_only else []
    logger.log(
        INFO if guarded else WARNING,
        "celery_poison %s: %s, ledger %s, namespace %s",
        version(),
        ", ".join(told),
        without_secrets(plugin.ledger_url),
        plugin.settings.namespace,
    )

    limited = _limited(app, plugin.policies, pool)
    if limited and not pool.ends_hangs:
        logger.warning(
            "celery_poison: a hang of %s is never ended, and keeps its slot until a restart: the pool %s"
            " ignores hard time limits; cure: time-outs in the task, or the pool prefork",
            *(some_of(task.name for task in limited), "threads" if pool.name == "thread" else pool.name),
        )
    elif silent := [task.name for task in limited if _is_silent(task, *plugin.policies[task.name])]:
        logger.warning(
            "celery_poison: a hang of %s leaves no trace in quarantine: its hard time limit acknowledges the"
            " message (acks_on_timeout, by Celery's default); guarded(acks_on_timeout=False) puts it back",
            some_of(silent),
        )


def _limited(app: Celery, policies: Mapping[str, tuple[Policy, bool]], pool: PoolFacts) -> list[Any]:
    """Return the user's guarded tasks that have a hard time limit."""
    users = (app.tasks[name] for name in policies if name in app.tasks and not name.startswith(BUILT_IN))
    return [task for task in users if task.time_limit or app.conf.task_time_limit or pool.hard]


def _is_silent(task: Any, policy: Policy, diverts: bool) -> bool:
    """Whether a message of that task is acknowledged when its hard time limit ends it."""
    return diverts and policy.rerun and acks_end(task, timed_out=True)


def _log_quarantined(record: MessageRecord) -> None:
    """Log it by one template for each task, queue, cause and place: Sentry and others group by that."""
    task, queue, source = record.task, record.queue, record.evidence.source
    name, told = f"Task {literal(task)}[%s]" if task else "Message %s", [record.id]
    sort = causes.describe(record.cause)
    if record.reason.startswith(sort):
        why, rest = f"it {literal(sort)}%s", record.reason.removeprefix(sort)
    else:
        why, rest = f"%s; cause: {literal(record.cause)}", record.reason
    told.append(rest)
    parts = [f"{name} of queue {literal(queue)} is in quarantine now: {why}"]
    if source:
        parts.append(f"in {literal(source)}")
    if record.arguments:
        parts.append("arguments: %s")
        told.append(record.arguments)
    told.append(command(f"poison show {argument(short(record.id))}"))
    about = {"task": task, "task_id": record.id, "queue": queue, "cause": record.cause}
    logger.log(
        WARNING if record.cause == causes.HELD else ERROR,  # a person asked for the hold
        f"celery_poison: {'; '.join(parts)}; %s",
        *map(clean, told),
        extra={**about, "place": source, "worker": record.worker},
    )


class Announcer:
    """Speaks for one worker."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    @property
    def is_heard(self) -> bool:
        """Whether events have a listener."""
        return self._dispatcher() is not None

    def candidate(self, id: str, task: str, cause: str, crashes: int) -> None:
        story = causes.describe(cause)
        logger.warning(
            SUSPECTED, task, id, story, crashes, extra={"task": task, "task_id": id, "cause": cause}
        )
        self.news(Notice(id, Fact.CANDIDATE, story))
        signals.message_candidate.send(sender=None, message={"id": id, "task": task}, cause=cause)

    def quarantined(self, record: MessageRecord) -> None:
        id, task, reason = record.id, record.task, record.reason
        _log_quarantined(record)
        if record.cause == causes.FAILURE:  # Celery has told exception and traceback: those stay
            self._send("task-quarantined", uuid=id, result=reason)
        else:
            self._event("task-quarantined", id, reason, result=reason)
        about = {"id": id, "task": task}
        signals.message_quarantined.send(sender=None, message=about, cause=record.cause, reason=reason)

    def acquitted(self, id: str, task: str) -> None:
        logger.info("celery_poison: Task %s[%s] ended alive and is no candidate any more", task, id)

    def news(self, news: Notice) -> None:
        """Tell Flower what another process did, or a person decided."""
        said = "released from quarantine" if news.fact is Fact.RELEASED else news.story
        self._event(_EVENTS[news.fact], news.id, said)

    def fleet(self, name: str, facts: dict[str, Any]) -> None:
        """Tell as an event what a signal tells of a worker, the monitor or the fleet gate (EMS-5)."""
        kind = "poison-" + name.removeprefix("fleet_").replace("_", "-")
        # ``worker`` is Flower's own.
        told = {"incarnation" if field == "worker" else field: fact for field, fact in facts.items()}
        self._send(kind, **told)

    def _event(self, kind: str, id: str, story: str, **fields: str) -> None:
        # No traceback: it would still be shown when the task has succeeded after all.
        page = f"/poison/task/{quote(id, safe='')}"
        typed = command(f"poison show {argument(id)}")
        said = f"celery_poison: {story}; see {page} in Flower, or: {typed}"
        if kind == "task-failed":  # exporters take the word before the bracket for the exception's class
            said = f"{GivenUp.__name__}({said!r})"
        self._send(kind, uuid=id, exception=said, traceback="", **fields)

    def _send(self, kind: str, /, **fields: Any) -> None:
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            dispatcher.send(kind, **fields)

    def _dispatcher(self) -> Any:
        dispatcher = getattr(self._loop.consumer, "event_dispatcher", None)
        return dispatcher if dispatcher is not None and dispatcher.enabled else None
