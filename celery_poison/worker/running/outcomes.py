"""How a start ended, by what Celery's tracer returned or raised."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore, Reject, Retry

from celery_poison.errors import StaleDelivery
from celery_poison.requests import DiscardRequested, QuarantineRequested
from celery_poison.verdict import Ended

#: Characters of a task's own words that the journal keeps.
NOTE_LENGTH = 500


def outcome_of_result(result: Any) -> tuple[Ended, str, str]:
    """Return how a start ended whose tracer returned ``result``, the journal's word, and the task's own."""
    failed, info, _ = result
    if not failed:
        return Ended.DONE, "success", ""
    error = info.exception
    if isinstance(error, ExceptionWithTraceback):
        error = error.exc
    note = str(error)[:NOTE_LENGTH] if isinstance(error, DiscardRequested) else ""
    return *outcome_of(error), note


def outcome_of(error: BaseException) -> tuple[Ended, str]:
    """Return how a start ended that raised ``error``, and the journal's word for it."""
    match error:
        case StaleDelivery():
            return Ended.NOT, "stale"
        case QuarantineRequested():
            return Ended.INTERRUPTED, "quarantined"
        case DiscardRequested():
            return Ended.DONE, "discarded"
        case Retry():
            return Ended.DONE, "retry"
        case Reject(requeue=True):
            return Ended.ROLLED_BACK, "rejected"
        case Reject():
            return Ended.DONE, "rejected"
        case Ignore():
            return Ended.DONE, "ignored"
        case _:
            return Ended.DONE, "failure"
