"""Only looking on (``poison_observe_only``): what would become of a message is noted, and no more.

Everything that the plugin knows is written down as ever, and judged. But the tasks acknowledge as they would
without us, the broker's connection is Celery's own, and what a request does at its end is Celery's too.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded
from celery import Celery
from celery.exceptions import Reject
from celery.worker.request import Request

from celery_poison import causes
from celery_poison.decide import convict
from celery_poison.errors import StaleDelivery
from celery_poison.evidence import Evidence
from celery_poison.guard import give_back_acks
from celery_poison.model import History, Limits, Start
from celery_poison.requests import QuarantineRequested, RollbackRequested
from celery_poison.task import PoisonTask
from celery_poison.worker.outcome import cause_of_death, is_unacknowledged_failure
from celery_poison.worker.request import GuardedRequest


def observe_tasks(app: Celery) -> None:
    """Make the guarded tasks of ``app`` behave as without us, in this process and its children."""
    for task in app.tasks.values():
        if isinstance(task, PoisonTask):
            give_back_acks(task, app.conf)
            type(task).Request = "celery_poison.worker.observed:ObservedRequest"


class ObservedRequest(GuardedRequest):
    """Celery's request, whose start and end are noted."""

    @property
    def runs_alone(self) -> bool:
        return False

    def _stop_if_blocked(self) -> None:
        if reason := self._blocked():
            about = (self.message, self.mid, self.start(), causes.BLOCKED, reason)
            self._note(partial(self.runtime.quarantine_writer.would_quarantine, *about))

    def _divert(self, error: BaseException) -> bool:
        if isinstance(error, QuarantineRequested):
            return super()._divert(error)  # its own code asks for it: ignoring that would lose the message
        cause = cause_of_death(error)
        self._ended_well = cause is None and not isinstance(error, (TimeLimitExceeded, Terminated))
        if cause is not None:
            self._open_death(cause, error)
        elif isinstance(error, TimeLimitExceeded):
            self._put_back_by = causes.TIME_LIMIT
        elif isinstance(error, Reject) and error.requeue:
            self._put_back_by = str(error.reason) if isinstance(error, RollbackRequested) else "rejected"
        elif self.diverts and is_unacknowledged_failure(error, self._task):
            about = (self.message, self.mid, self.start(), causes.REJECTED, f"failed: {error!r}")
            self._note(partial(self.runtime.quarantine_writer.would_quarantine, *about))
        return False

    def reject(self, requeue: bool = False) -> None:
        if self._is_open or self.acknowledged:
            return
        put_back_by, self._put_back_by = self._put_back_by, None
        if requeue and put_back_by == causes.TIME_LIMIT:
            evidence = self.runtime.exits.so_far(self.worker_pid or 0)
            self._note_death(causes.TIME_LIMIT, evidence, failure=True)
        elif requeue and put_back_by is not None and self.diverts:
            self.is_on_record = True
            self._note(partial(self._record_rollback, self.start(), put_back_by))
        Request.reject(self, requeue=requeue)
        self._settle(put_back=requeue)

    def _open_death(self, cause: str, error: BaseException) -> None:
        cause, evidence = self._examine(cause, error)
        if evidence.is_from_outside:
            self.is_on_record = True
            self._note(partial(self._record_interruption, self.start(), cause, evidence))
        else:
            self._note_death(cause, evidence)

    def _note_death(self, cause: str, evidence: Evidence, *, failure: bool = False) -> None:
        self.is_on_record = True
        self._note(partial(self._record_death, self.start(), cause, evidence, failure))

    def _note(self, job: Any) -> None:
        """In the background thread; not at all while the ledger is away, since nobody waits for it."""
        self.runtime.background.do(job, lambda: False)

    # --- in the background thread -----------------------------------------------------------------

    def _record_interruption(self, start: Start, cause: str, evidence: Evidence) -> None:
        known = self.runtime.quarantine_writer.journal_fields(self.message, start.task, evidence)
        with suppress(StaleDelivery):
            self.runtime.ledger.interrupt(self.mid, start, cause=cause, known=known)

    def _record_death(self, start: Start, cause: str, evidence: Evidence, failure: bool) -> None:
        with suppress(StaleDelivery):
            recorded = self.runtime.ledger.crash(
                self.mid,
                start,
                cause=cause,
                shared=False,
                failure=failure and start.diverts == 1,
                known=self.runtime.quarantine_writer.journal_fields(self.message, start.task, evidence),
            )
            if start.diverts and not recorded.finished:
                self._judge(start, recorded.history, gate_closed=recorded.gate_closed)

    def _record_rollback(self, start: Start, cause: str) -> None:
        with suppress(StaleDelivery):
            known = self.runtime.quarantine_writer.journal_fields(self.message, start.task)
            recorded = self.runtime.ledger.rollback(self.mid, start, cause=cause, known=known)
            self._judge(start, recorded.history)

    def _judge(self, start: Start, history: History, *, gate_closed: bool = False) -> None:
        limits = Limits(start.max_crashes, start.max_failures)
        verdict = convict(history, limits, gate_closed=gate_closed)
        if verdict is not None:
            self.runtime.quarantine_writer.would_quarantine(
                self.message, self.mid, start, verdict.cause, verdict.reason
            )
