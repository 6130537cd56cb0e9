"""Guarded tasks: the base class, and how one finds its run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from celery import Celery
from celery.app.task import Context, Task

from celery_poison.broker.capture import sent_at_once
from celery_poison.headers import mid_of
from celery_poison.model import FIRST
from celery_poison.plugin import attempts, carried, plugin_of
from celery_poison.upstream.acks import GuardedTask, refuse_early_ack
from celery_poison.upstream.requests import (
    DiscardRequested,
    QuarantineRequested,
    RollbackRequested,
)

T = TypeVar("T")


class RunHere(Protocol):
    """A run in this process, for its task: ``worker.child.RunningTask``.

    Attributes:
        observes: nothing may become of the task but what Celery makes of it.
    """

    @property
    def observes(self) -> bool: ...

    def enters(self) -> bool:
        """Whether the body begins now; not where it calls itself."""

    def call(self, task: Task, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the body, with what stands around it; or say why not."""

    def note_failure(self, task: Task, error: Exception) -> None:
        """Note what the task has raised, before Celery makes something of it that can be pickled."""

    def check_ownership(self) -> None:
        """Raise StaleCompletion when the message, whose run has just ended, has a new owner (EMS-8)."""

    def before_retry(self, task: Task, error: Exception) -> tuple[str, bool]:
        """Return the header that the retry carries, and whether there is to be none."""

    def tying(self, task: Task) -> AbstractContextManager[None]:
        """Tie what is published while this is entered to the success of the task."""

    def follow(self, task: Task, rows: Iterable[T], key: Callable[[T], object] | None) -> Iterator[T]:
        """Iterate over rows so that it is known at which one the task dies."""


#: What runs in this process, by mid. Not by task id: in a pool of threads a retry begins before the attempt
#: has ended that sent it.
running: dict[str, RunHere] = {}


def run_of(task: Task) -> RunHere | None:
    """Return the run of a task; None where that is called directly or eagerly, or merely observed."""
    request = task.request
    if not running or request.called_directly or request.is_eager:
        return None
    run = running.get(mid_of(vars(request)))
    return None if run is None or run.observes else run


@contextmanager
def retrying(task: Task, exc: Any = None) -> Iterator[None]:
    """Retry in here: ``convict_at_once`` is raised instead, and the retry carries earlier failures."""
    error = exc if isinstance(exc, BaseException) else sys.exc_info()[1]
    told, is_last = "", False
    if isinstance(error, Exception) and (run := run_of(task)) is not None:
        told, is_last = run.before_retry(task, error)
    if is_last and error is not None:
        raise error
    id = task.request.id or ""
    if told:
        carried[id] = told
    try:
        with sent_at_once():
            yield
    finally:
        if carried.get(id) is told:  # among threads the retry may have begun, and retry itself
            carried.pop(id, None)


class Followed(NamedTuple):
    """The object ``self.poison`` of a guarded task."""

    task: Task

    def each(self, rows: Iterable[T], key: Callable[[T], object] | None = None) -> Iterator[T]:
        """Iterate over rows; if the task dies in the loop, it is known at which one (NEW-20).

        ``for row in self.poison.each(rows, key=lambda row: row.id):`` in the task's own process (prefork, or
        a cell). Elsewhere, and where it is called directly or eagerly, it just iterates.

        Args:
            key: returns what names a row, at most 100 characters of text; what it raises is logged, and then
                rows have no key. It is hidden where ``poison_redact`` names ``item_key``.
        """
        run = run_of(self.task)
        return iter(rows) if run is None else run.follow(self.task, rows, key)


class PoisonTask(GuardedTask):
    """Base class of guarded tasks: ``@app.task(base=PoisonTask, max_crashes=2)``.

    A task of this class acknowledges late and is put back when its worker is lost. Options, and their
    defaults and units, are those of :class:`celery_poison.Policy`.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    Request = "celery_poison.worker.request:GuardedRequest"

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        super().on_bound(app)
        cls._belongs_to(app)

    @classmethod
    def _belongs_to(cls, app: Celery) -> None:
        if not cls.keeps_acks:
            refuse_early_ack({"acks_late": cls.acks_late}, f"task {cls.name!r}")
        plugin_of(app)

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: Any = None, throw: bool = True, **options: Any
    ) -> Any:
        """Retry as in Celery; what is in ``convict_at_once`` is raised, as if retries were used up."""
        with retrying(self, exc):
            return super().retry(args, kwargs, exc, throw, **options)

    def replace(self, sig: Any) -> Any:
        """Replace this task as in Celery: what stands in its place leaves at once."""
        with sent_at_once():
            return super().replace(sig)

    @property
    def poison(self) -> Followed:
        """Lets the plugin follow a loop of this task: ``self.poison.each(rows)``."""
        return Followed(self)

    def publishing(self) -> AbstractContextManager[None]:
        """Tie what is published within ``with self.publishing():`` to the success of this task (TP1-9).

        It leaves when the task has succeeded, in its order and all of it; if the task fails, is put back or
        quarantined, asks for a retry, or its worker dies, nothing leaves. If the block raises and the task
        goes on, what was published in that block is dropped. Called directly or eagerly it changes nothing.

        Raises:
            StaleDelivery: from the task, after its last line: its message has a new owner (EMS-11).
            ConfigurationError: this version of Celery has no place where it could be done.
        """
        run = run_of(self)
        return nullcontext() if run is None else run.tying(self)

    def rollback(self, reason: str = "rolled back by the task", *, countdown: float = 0.0) -> NoReturn:
        """Put the message back to the front of its queue; past ``max_failures`` it is quarantined.

        Args:
            countdown: seconds before it goes back; it holds no slot meanwhile.

        Raises:
            RollbackRequested: always; nothing after this call runs.
            ValueError: such a countdown is impossible.
        """
        if not 0 <= countdown < float("inf"):
            raise ValueError(f"countdown={countdown} is impossible: use seconds, 0 or more")
        raise RollbackRequested(reason, countdown=countdown)

    def quarantine(self, reason: str) -> NoReturn:
        """Move the running message to quarantine; ``reason`` is shown to the person who decides.

        Raises:
            QuarantineRequested: always; nothing after this call runs.
        """
        raise QuarantineRequested(reason)

    def discard(self, reason: str) -> NoReturn:
        """Acknowledge and forget the running message; the journal keeps ``reason``.

        Raises:
            DiscardRequested: always; nothing after this call runs.
        """
        raise DiscardRequested(reason)

    def _get_request(self) -> Context:
        request = super()._get_request()
        # Each time: a pool that runs bodies in threads of its own has one request for all its tasks.
        request.poison = attempts.get(request.id or "", FIRST)
        return request

    request = property(_get_request)
