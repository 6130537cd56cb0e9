"""A guarded request: hears how its task ended or died, and keeps its message until that is on record."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Reject, TaskRevokedError
from celery.worker import state

from celery_poison import causes
from celery_poison.broker.sealed import Sealed
from celery_poison.errors import StaleDelivery
from celery_poison.evidence import Evidence
from celery_poison.model import Ended
from celery_poison.plugin import marking
from celery_poison.requests import NeverBegan, QuarantineRequested, RollbackRequested, TrialSpoilt
from celery_poison.worker.outcome import Fate, cause_of_death, evidence_of, is_unacknowledged_failure
from celery_poison.worker.sending import SentRequest


class GuardedRequest(SentRequest):
    """Celery's request, with a start in the ledger.

    Attributes:
        is_on_record: its end is in the ledger already; nothing is left to settle.
        is_refused_by_cells: it could not be tried in a cell.
        is_stale: another start owns the message by now; nothing of this one counts.
    """

    is_on_record = False
    is_refused_by_cells = False
    is_stale = False
    _ended_well = False
    _goes_on = False
    _put_back_by: str | None = None
    _fate: Fate | None = None

    def _stop_if_blocked(self) -> None:
        """Divert what was blocked while it waited here (NEW-3).

        Raises:
            TaskRevokedError: to Celery, which gives the place in the pool to another.
        """
        if reason := self._blocked():
            if self.poison is not None:
                self.runtime.inflight.dropped(self.poison.start.token)
            self._open_fate().wants_quarantine(causes.BLOCKED, reason)
            raise TaskRevokedError(self.id)

    def _blocked(self) -> str:
        runtime, delivery = self.runtime, self.poison
        if not runtime.blocks.concerns(self._type) or (delivery is not None and delivery.released):
            return ""
        policy = runtime.policies[self._type][0]
        return str(runtime.checker.on_its_way_to_the_pool(self._message, self._type, policy))

    # --- how it ended --------------------------------------------------------------------------

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> None:
        failed, _, runtime = failed__retval__runtime
        if not failed and runtime is None:
            # A greenlet that was killed, by a cold shutdown for one: its pool takes that for a success.
            self.reject(requeue=True)
            self._left_pool()
            return
        self._ended_well = not failed
        super().on_success(failed__retval__runtime, **kwargs)
        if not failed:
            self._left_pool()

    def on_retry(self, exc_info: Any) -> None:
        self._goes_on = True
        super().on_retry(exc_info)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        self._put_back_by = None if soft or self._is_ending_with_worker else causes.TIME_LIMIT
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        if self._ticket is None:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        if self._is_open:
            return None
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if self.is_stale or isinstance(error, StaleDelivery):
            return self._leave_to_its_owner(error)
        try:
            if not self._is_ending_with_worker and self._divert(error):
                return None
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            self._left_pool()

    @property
    def _is_ending_with_worker(self) -> bool:
        return bool(state.should_terminate or self._already_cancelled or self._already_revoked)

    def _divert(self, error: BaseException) -> bool:
        """Take the message out of Celery's hands where its fate is ours to decide."""
        cause = cause_of_death(error)
        if cause is not None:
            self._open_death(cause, error)
            return True
        self._ended_well = not isinstance(error, (TimeLimitExceeded, Terminated))
        if isinstance(error, TrialSpoilt):
            self._open_fate().interrupted(error.cause, error.evidence)
            return True
        if isinstance(error, TimeLimitExceeded):  # reported here before on_timeout hears of it
            self._put_back_by = causes.TIME_LIMIT
        elif isinstance(error, Reject) and error.requeue:
            self._put_back_by = str(error.reason) if isinstance(error, RollbackRequested) else "rejected"
        elif self.diverts and isinstance(error, QuarantineRequested):
            self._open_fate().wants_quarantine(causes.REQUESTED, str(error))
            return True
        elif self.diverts and is_unacknowledged_failure(error, self._task):
            self._open_fate().wants_quarantine(causes.REJECTED, f"failed: {error!r}")
            return True
        return False

    def _open_death(self, cause: str, error: BaseException) -> None:
        cause, evidence = self._examine(cause, error)
        if evidence.is_from_outside and self.diverts:
            self._open_fate().interrupted(cause, evidence)
        else:
            self._open_fate().died(cause, error, evidence)

    def _examine(self, cause: str, error: BaseException) -> tuple[str, Evidence]:
        """Return what it died of, and what else is known about it."""
        evidence = evidence_of(error, self.worker_pid, self.runtime.exits)
        if isinstance(error, WorkerLostError) and evidence.cause != causes.UNKNOWN:
            cause = evidence.cause  # what became of the process, and not what was written about it
        return cause, evidence

    def _left_pool(self) -> None:
        assert self._ticket is not None
        self.runtime.inflight.left_pool(self._ticket.token, ended_well=self._ended_well)
        if not self.diverts:
            self._settle()

    def terminate(self, pool: Any, signal: Any = None) -> None:
        with suppress(NotImplementedError):  # solo and threads: it can only be waited for
            super().terminate(self._cells or pool, signal)

    def cancel(self, pool: Any, signal: Any = None, **options: Any) -> None:
        # In solo the signal's handler runs within the task, and would fail it with Celery's error.
        with suppress(NotImplementedError):
            super().cancel(self._cells or pool, signal, **options)

    def end_stale(self) -> None:
        """Stop running: the message has a new owner, and nothing of this start would be kept (EMS-8)."""
        assert self._ticket is not None
        if not self.worker_pid or not self.runtime.inflight.is_in_pool(self._ticket.token):
            return  # it will not begin; or it has ended, and its process may be at something else
        self.is_stale = self.is_on_record = True
        pool = self._cells or self.runtime.consumer.pool
        if self._cells or (hasattr(pool, "terminate_job") and not self.runtime.contained):
            pool.terminate_job(self.worker_pid, signal.SIGKILL)

    def _leave_to_its_owner(self, error: BaseException) -> None:
        """Neither acknowledge nor put back: the message was put back already, and may run elsewhere."""
        state.task_ready(self)
        if not isinstance(error, NeverBegan):
            self.runtime.background.do(partial(self.runtime.ownership.ended_too_late, self, lost=True))
        self.is_stale = self.is_on_record = True
        self._left_pool()

    # --- its fate ------------------------------------------------------------------------------

    def _open_fate(self) -> Fate:
        self._fate = Fate(self)
        return self._fate

    @property
    def _is_open(self) -> bool:
        return self._fate is not None and self._fate.is_open

    def put_back_first(self) -> None:
        """Put the message back to the front of its queue (WAS-3)."""
        if not self.acknowledged:
            self._message.to_front = True
            super().reject(requeue=True)

    def fail_as_celery_does(self, error: BaseException) -> None:
        """Fail an early-acknowledged task; Celery would end the whole worker for some of these errors."""
        lost = error if isinstance(error, WorkerLostError) else WorkerLostError(repr(error))
        super().on_failure(_info_of(lost))

    def retry_as_celery_does(self, error: BaseException) -> bool:
        """Send the retry that ``retry_on_worker_lost`` asks for; it is looked up before it runs."""
        limit = self._task.max_retries
        if not getattr(self._task, "retry_on_worker_lost", False):
            return False
        if limit is not None and self._context.retries >= limit:
            return False
        lost = error if isinstance(error, WorkerLostError) else WorkerLostError(repr(error))
        self._goes_on = True
        with marking(self.id):
            return bool(self._retry_worker_lost(lost, _info_of(lost)))

    # --- acknowledgement -----------------------------------------------------------------------

    def acknowledge(self) -> None:
        if self._is_open or self.acknowledged:
            return
        if isinstance(self._message, Sealed):
            self._message.is_done()
        super().acknowledge()
        if self.diverts:
            self._settle()

    def reject(self, requeue: bool = False) -> None:
        if self._is_open or self.acknowledged:
            return
        put_back_by, self._put_back_by = self._put_back_by, None
        if requeue and put_back_by == causes.TIME_LIMIT:
            limit = self.time_limits[0] or self._task.time_limit
            evidence = replace(self.runtime.exits.so_far(self.worker_pid or 0), time_limit_s=limit)
            self._open_fate().died(causes.TIME_LIMIT, TimeLimitExceeded(), evidence)
        elif requeue and put_back_by is not None and self.diverts:
            self._open_fate().rolled_back(put_back_by)
        else:
            super().reject(requeue=requeue)
            self._settle(put_back=requeue)

    def _settle(self, *, put_back: bool = False) -> None:
        """Take its entry out of the ledger, now that the broker was told."""
        if self.is_on_record:
            return
        self.is_on_record = True
        if self._ticket is None:
            if self.poison is not None:
                self.runtime.endings.never_started(self.poison, put_back=put_back)
        elif put_back:
            self.runtime.endings.interrupted(self.mid, self.start())
        else:
            if not self._ended_well:
                self.runtime.recorder.finish(self._ticket, self.id, self._type, Ended.DONE, "lost", 0.0)
            went_back = getattr(self._message, "went_back", None)
            copy = self.epoch != self.runtime.epoch if went_back is None else went_back
            self.runtime.endings.acknowledged(self, self._ticket, final=not self._goes_on, copy=copy)


def _info_of(error: Exception) -> ExceptionInfo:
    try:
        raise error
    except Exception:
        return ExceptionInfo()
