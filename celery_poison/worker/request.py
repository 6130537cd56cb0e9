"""A guarded request: goes to the pool with a ticket, and hears how its task ended or died."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Reject, TaskRevokedError
from celery.worker import state
from celery.worker.request import Request

from celery_poison import causes
from celery_poison.errors import StaleDelivery
from celery_poison.evidence import Evidence
from celery_poison.headers import mid_of
from celery_poison.plugin import marking, plugin_of
from celery_poison.records import ALONE, IN_CELL, Start
from celery_poison.requests import NeverBegan, QuarantineRequested, RollbackRequested, TrialSpoilt
from celery_poison.verdict import Ended, Phase
from celery_poison.worker.attempt import Ticket, run_fast, run_plain
from celery_poison.worker.delivery import Delivery, attempt_of, size_of
from celery_poison.worker.fate import Fate, cause_of_death, evidence_of, is_unacknowledged_failure
from celery_poison.worker.trial.host import Cells


class GuardedRequest(Request):
    """Celery's request, with a start in the ledger.

    Celery derives a class of its own from this one for every task, and overrides two methods in it;
    those overrides are taken out again, since they are optimised copies of what is inherited.

    Attributes:
        poison: notes about a delivery that needed care, or None.
        is_on_record: its end is in the ledger already; nothing is left to settle.
        is_refused_by_cells: it could not be tried in a cell.
        is_stale: another start owns the message by now; nothing of this one counts.
        epoch: number of the broker connection by which it was sent to the pool.
        was_ended: somebody wanted it to end: it was revoked, or its connection or its message was lost.
        companions: how many others are on trial in its cell.
    """

    is_on_record = False
    is_refused_by_cells = False
    is_stale = False
    was_ended = False
    companions = 0
    epoch = -1
    _ticket: Ticket | None = None
    _ended_well = False
    _cells: Cells | None = None
    _goes_on = False
    _put_back_by: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == Request.__module__:
            for name in ("execute_using_pool", "on_success"):
                if name in vars(cls):
                    delattr(cls, name)

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.poison: Delivery | None = getattr(message, "poison", None)
        self.runtime = plugin_of(self._app).runtime
        self._fate: Fate | None = None

    @property
    def runs_alone(self) -> bool:
        """Whether nothing may run beside it."""
        return self.poison is not None and self.poison.alone

    @property
    def alone(self) -> int:
        """What its entry in the ledger says about what runs beside it."""
        if not self.runs_alone:
            return 0
        return IN_CELL + self.companions if self._cells and not self.needs_idle_worker else ALONE

    @property
    def needs_idle_worker(self) -> bool:
        """Whether nothing may run in its worker at all: at its last trial the worker ended too."""
        return self.poison is not None and self.poison.history.spoilt > 0

    @property
    def diverts(self) -> bool:
        """Whether its message is still the broker's when its task dies."""
        return bool(self._task.acks_late)

    @property
    def mid(self) -> str:
        assert self._ticket is not None
        return self._ticket.mid

    # --- to the pool ---------------------------------------------------------------------------

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        """As in Celery, but the pool runs our target, which records the start before any user code."""
        if self.runtime is None:
            return super().execute_using_pool(pool, **kwargs)
        if self.revoked():
            raise TaskRevokedError(self.id)
        ticket = self._ticket = self._make_ticket()
        self._stop_if_blocked()
        self.epoch = self.runtime.epoch
        self._cells = pool if pool is self.runtime.cells else None
        if self.runtime.fenced:
            # It waited for a place in the pool when this worker was taken for dead, and its message was put
            # back. The places are counted anew with the next broker connection, in a moment.
            state.task_ready(self)
            return None
        self.runtime.whereabouts.went_to_pool(ticket.token, self)
        task, (hard, soft) = self._task, self.time_limits
        result = pool.apply_async(
            run_fast if self._app.use_fast_trace_task else run_plain,
            args=(
                ticket.tell(),
                self._type,
                self.id,
                self._request_dict,
                self._body,
                self._content_type,
                self._content_encoding,
            ),
            accept_callback=self.on_accepted,
            timeout_callback=self.on_timeout,
            callback=self.on_success,
            error_callback=self.on_failure,
            soft_timeout=soft or task.soft_time_limit,
            timeout=hard or task.time_limit,
            correlation_id=self.id,
        )
        self._apply_result = ref(result) if result is not None else None
        return result

    def _stop_if_blocked(self) -> None:
        """Divert what was blocked while it waited here (NEW-3).

        Raises:
            TaskRevokedError: to Celery, which gives the place in the pool to another.
        """
        if reason := self._blocked():
            if self.poison is not None:
                self.runtime.whereabouts.dropped(self.poison.start.token)
            self._open_fate().wants_quarantine(causes.BLOCKED, reason)
            raise TaskRevokedError(self.id)

    def _blocked(self) -> str:
        runtime, delivery = self.runtime, self.poison
        if not runtime.blocks.concerns(self._type) or (delivery is not None and delivery.released):
            return ""
        policy = runtime.policies[self._type][0]
        return str(runtime.checker.on_its_way_to_the_pool(self._message, self._type, policy))

    def _make_ticket(self) -> Ticket:
        delivery = self.poison
        if delivery is None:
            queue = getattr(self._message, "queue_name", None) or self._delivery_info["routing_key"] or ""
            mid = mid_of(self._request_dict)
            first = self.runtime.first_attempt
            return Ticket(mid, self.runtime.next_token(), queue, first, size_of(self._message))
        # From here on the entry is the pool process's to write.
        delivery.start = delivery.start.in_phase(Phase.RUNNING)
        start = delivery.start
        return Ticket(delivery.mid, start.token, start.queue, attempt_of(delivery), start.payload_bytes)

    def start(self) -> Start:
        """Return the start as this process knows it, for the scripts that end it."""
        ticket = self._ticket
        assert ticket is not None
        policy, diverts = self.runtime.policies[self._type]
        return Start(
            phase=Phase.RUNNING.value,
            token=ticket.token,
            worker=self.runtime.worker,
            pid=self.worker_pid or 0,
            at_ms=int((self.time_start or 0) * 1000),
            deliveries=ticket.attempt.deliveries,
            alone=self.alone,
            id=self.id,
            task=self._type,
            queue=ticket.queue,
            max_crashes=policy.max_crashes,
            max_failures=policy.max_failures,
            payload_bytes=ticket.payload_bytes,
            diverts=int(diverts),
        )

    # --- how it ended --------------------------------------------------------------------------

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> None:
        failed = failed__retval__runtime[0]
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
            self._open_fate().interrupted(error.cause, error.evidence, error.group)
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
        self.runtime.whereabouts.left_pool(self._ticket.token, ended_well=self._ended_well)
        if not self.diverts:
            self._settle()

    def terminate(self, pool: Any, signal: Any = None) -> None:
        self.was_ended = True  # before its cell is told, which others may share
        super().terminate(self._cells or pool, signal)

    def cancel(self, pool: Any, signal: Any = None, **options: Any) -> None:
        self.was_ended = True
        super().cancel(self._cells or pool, signal, **options)

    def end_stale(self) -> None:
        """Stop running: the message has a new owner, and nothing of this start would be kept (EMS-8)."""
        assert self._ticket is not None
        if not self.worker_pid or not self.runtime.whereabouts.is_in_pool(self._ticket.token):
            return  # it will not begin; or it has ended, and its process may be at something else
        self.is_stale = self.is_on_record = self.was_ended = True
        pool = self._cells or self.runtime.consumer.pool
        if self._cells or (hasattr(pool, "terminate_job") and not self.runtime.contained):
            pool.terminate_job(self.worker_pid, signal.SIGKILL)

    def _leave_to_its_owner(self, error: BaseException) -> None:
        """Neither acknowledge nor put back: the message was put back already, and may run elsewhere."""
        state.task_ready(self)
        if not isinstance(error, NeverBegan):
            self.runtime.clerk.do(partial(self.runtime.ended_too_late, self, lost=True))
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
                self.runtime.never_started(self.poison, put_back=put_back)
        elif put_back:
            self.runtime.interrupted(self.mid, self.start())
        else:
            if not self._ended_well:
                self.runtime.recorder.finish(self._ticket, self.id, self._type, Ended.DONE, "lost", 0.0)
            self.runtime.acknowledged(self, self._ticket, final=not self._goes_on)


def _info_of(error: Exception) -> ExceptionInfo:
    try:
        raise error
    except Exception:
        return ExceptionInfo()
