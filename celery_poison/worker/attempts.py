"""Tells of attempts that ended without success (TP1-3), once the worker's main process knows their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from celery_poison import causes
from celery_poison.decide import End, Run
from celery_poison.model import Start
from celery_poison.policy import Policy
from celery_poison.quarantine.error_transactions import ErrorTransactions, told_of
from celery_poison.reports import Kind, Report
from celery_poison.worker.threads import Background

#: Characters of an error that a report tells.
REASON_LENGTH = 500

#: How a run ends that somebody hears of, and its cause where that says none. A retry goes on elsewhere, and
#: who waits for its idempotency key has not begun.
_TOLD: Final = {
    End.RAISED: (Kind.ROLLBACK, causes.FAILURE),
    End.REJECTED: (Kind.ROLLBACK, causes.REJECTED),
    End.ROLLED_BACK: (Kind.ROLLBACK, causes.REJECTED),
    End.QUARANTINED: (Kind.ROLLBACK, causes.REQUESTED),
    End.DIED: (Kind.ROLLBACK, causes.WORKER_LOST),
    End.TIMED_OUT: (Kind.ROLLBACK, causes.TIME_LIMIT),
    End.REVOKED: (Kind.ROLLBACK, causes.UNKNOWN),
    End.SPOILT: (Kind.ROLLBACK, causes.UNKNOWN),
    End.DISCARDED: (Kind.DISCARD, causes.REQUESTED),
}


class Attempt(Protocol):
    """A request whose run has ended, as far as reports go."""

    id: str
    type: str
    mid: str
    message: Any

    def start(self) -> Start: ...


@dataclass(eq=False, repr=False)
class Attempts:
    """Tells of the attempts of one worker, in the background thread."""

    errors: ErrorTransactions
    background: Background
    policies: Mapping[str, tuple[Policy, bool]]

    def ended(self, request: Attempt, run: Run, error: BaseException) -> None:
        """Have it told how a run ended, if somebody wants to hear of that (on the event loop)."""
        if run.end not in _TOLD or run.observed:
            return
        kind, cause = _TOLD[run.end]
        if getattr(self.policies[request.type][0], kind.value) is None:
            return
        if run.end is not End.ROLLED_BACK:  # that gives its reason for a cause
            cause = run.cause or cause
        start, reason = request.start(), str(error)[:REASON_LENGTH]
        self.background.do(partial(self._tell, kind, request.message, request.mid, start, cause, reason))

    def _tell(self, kind: Kind, message: Any, mid: str, start: Start, cause: str, reason: str) -> None:
        _, unsent = self.errors.attempt(start.token)
        told = told_of(message, mid=mid, start=start)
        self.errors.tell(Report.about(kind, told, cause, reason, token=start.token, unsent=unsent))
        self.errors.forget_attempt(start.token)
