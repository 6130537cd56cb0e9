"""What a guarded task can ask for by raising (WAS-1), and what tells how a run ended."""

from __future__ import annotations

from pickle import PickleError
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import ContentDisallowed, DecodeError, EncodeError

from celery_poison import causes
from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.decide import End
from celery_poison.errors import StaleDelivery

#: What is raised where a message is not what it should be.
GARBAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, PickleError)


class RollbackRequested(Reject):
    """Put the message back to the front of its queue and count one failure.

    Args:
        countdown: seconds before it goes back.
    """

    def __init__(
        self, reason: str = "rolled back by the task", requeue: bool = True, countdown: float = 0.0
    ) -> None:
        super().__init__(reason, requeue=requeue)
        self.countdown = countdown


class QuarantineRequested(Ignore):
    """Move the message to quarantine, for the given reason."""


class DiscardRequested(Ignore):
    """Acknowledge and forget the message; the journal keeps the reason."""


class StaleCompletion(Ignore, StaleDelivery):
    """The start that ends here has lost its message to another one: nothing of it is stored (EMS-8)."""


class WaitsForKey(Ignore):
    """Another message with the same idempotency key runs: this one is parked until that has ended (NEW-12).

    Args:
        effect: the key of the ledger that says who; empty: Redis is away.
    """

    def __init__(self, effect: str) -> None:
        super().__init__(effect)
        self.effect = effect


class NeverBegan(StaleCompletion):
    """The same, before it began."""


class BodyNotReached(Exception):
    """Celery failed in front of the task's body: its result backend was away, for one."""


class TaskDied(Exception):
    """A task asked its process to end (SystemExit) or broke it (MemoryError) where others run too.

    Args:
        cause: a word of :mod:`celery_poison.causes`.
        detail: the original exception, as text.
        evidence: what is known beside; None: nothing.
    """

    def __init__(self, cause: str, detail: str = "", evidence: Evidence | None = None) -> None:
        super().__init__(cause, detail, evidence)
        self.cause = cause
        self.detail = detail
        self.evidence = evidence


class TrialSpoilt(Exception):
    """A suspect's trial was cut short by something that it cannot be to blame for; it is tried again.

    Args:
        why: a sentence.
        cause: a word of :mod:`celery_poison.causes`.
        evidence: what is known about the end of its cell.
    """

    def __init__(self, why: str, cause: str = causes.UNKNOWN, evidence: Evidence = NO_EVIDENCE) -> None:
        super().__init__(why, cause, evidence)
        self.cause = cause
        self.evidence = evidence


class MemoryExhausted(SystemExit):
    """A MemoryError on its way out of a guarded task.

    Celery would store it as an ordinary failure first and then end the whole worker. As a SystemExit
    it ends the pool process only, and no caller has a result before the message was judged.
    """


def read_end(error: BaseException) -> tuple[End, str]:
    """Return how a run ended that raised ``error``, and the cause for the ledger, where there is one."""
    if isinstance(error, Reject) and error.requeue:
        return End.ROLLED_BACK, str(error.reason) if isinstance(error, RollbackRequested) else ""
    if isinstance(error, WorkerLostError):
        return End.DIED, causes.from_worker_lost(str(error))
    if isinstance(error, (TaskDied, TrialSpoilt)):
        return End.DIED if isinstance(error, TaskDied) else End.SPOILT, error.cause
    return next(((end, cause) for kind, end, cause in _ENDS if isinstance(error, kind)), (End.RAISED, ""))


#: The first that fits counts.
_ENDS: tuple[tuple[type[BaseException], End, str], ...] = (
    (StaleDelivery, End.OVERTAKEN, ""),
    (MemoryError, End.DIED, causes.MEMORY_ERROR),
    (MemoryExhausted, End.DIED, causes.MEMORY_ERROR),
    (SystemExit, End.DIED, causes.SYSTEM_EXIT),
    (KeyboardInterrupt, End.DIED, causes.SYSTEM_EXIT),
    (TimeLimitExceeded, End.TIMED_OUT, causes.TIME_LIMIT),
    (Terminated, End.REVOKED, ""),
    (WaitsForKey, End.WAITS, ""),
    (BodyNotReached, End.NOT_REACHED, causes.NOT_REACHED),
    (QuarantineRequested, End.QUARANTINED, causes.REQUESTED),
    (DiscardRequested, End.DISCARDED, ""),
    (Reject, End.REJECTED, ""),
    (Ignore, End.IGNORED, ""),
    (Retry, End.RETRIED, ""),
)


def of_the_tracer(error: Exception, *, goes_back: bool) -> Exception:
    """Return what is told of an error that Celery's tracer raised, outside of the task's body.

    Args:
        goes_back: the message can go back: the body has not begun. It does unless the error is about the
            message itself, and would come again and again.
    """
    if not goes_back or isinstance(error, (*GARBAGE, EncodeError, DecodeError, ContentDisallowed, Reject)):
        return error
    return BodyNotReached(repr(error))


def acks_end(task: Any, *, timed_out: bool) -> bool:
    """Return whether such an end of a task is acknowledged. Before 5.7 Celery knew one option for both."""
    option = "acks_on_timeout" if timed_out else "acks_on_failure"
    return bool(getattr(task, option, task.acks_on_failure_or_timeout))
