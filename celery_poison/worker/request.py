"""A guarded request: goes to the pool with a ticket, and hears how its task ended or died."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import ref

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, TaskRevokedError
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request

from celery_poison import causes
from celery_poison.errors import StaleDelivery
from celery_poison.headers import mid_of
from celery_poison.plugin import marking, plugin_of
from celery_poison.records import Start
from celery_poison.requests import MemoryExhausted, QuarantineRequested, RollbackRequested, TaskDied
from celery_poison.results import success_was_stored
from celery_poison.verdict import Action, Ended, Limits, Phase, Verdict, convict
from celery_poison.worker.attempt import Ticket, run_fast, run_plain
from celery_poison.worker.delivery import Delivery, size_of
from celery_poison.worker.door import attempt_of

logger = get_logger(__name__)


class GuardedRequest(Request):
    """Celery's request, with a start in the ledger.

    Celery derives a class of its own from this one for every task, and overrides two methods in it;
    those overrides are taken out again, since they are optimised copies of what is inherited.
    """

    _ticket: Ticket | None = None
    _ended_well = False
    _fate_is_open = False
    _goes_on = False
    #: Its end is on record already; nothing is left to settle.
    _on_record = False
    _put_back_by: str | None = None
    #: Number of the broker connection by which it was sent to the pool.
    epoch = -1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == Request.__module__:
            for name in ("execute_using_pool", "on_success"):
                if name in vars(cls):
                    delattr(cls, name)

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self.poison: Delivery | None = getattr(message, "poison", None)
        self._runtime = plugin_of(self._app).runtime

    @property
    def runs_alone(self) -> bool:
        """Whether nothing may run beside it."""
        return self.poison is not None and self.poison.alone

    # --- to the pool ---------------------------------------------------------------------------

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        """As in Celery, but the pool runs our target, which records the start before any user code."""
        if self._runtime is None:
            return super().execute_using_pool(pool, **kwargs)
        if self.revoked():
            raise TaskRevokedError(self.id)
        ticket = self._ticket = self._make_ticket()
        self._runtime.went_to_pool(ticket.token, self)
        task, (hard, soft) = self._task, self.time_limits
        result = pool.apply_async(
            run_fast if self._app.use_fast_trace_task else run_plain,
            args=(
                ticket,
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

    def _make_ticket(self) -> Ticket:
        delivery = self.poison
        if delivery is None:
            queue = getattr(self._message, "queue_name", None) or self._delivery_info["routing_key"] or ""
            mid = mid_of(self._request_dict)
            return Ticket(mid, self._runtime.next_token(), queue, self._runtime.first_attempt)
        # From here on the entry is the pool process's to write.
        delivery.start = delivery.start.in_phase(Phase.RUNNING)
        return Ticket(delivery.mid, delivery.start.token, delivery.start.queue, attempt_of(delivery))

    def start(self) -> Start:
        """Return the start as this process knows it, for the scripts that end it."""
        ticket = self._ticket
        assert ticket is not None
        policy, diverts = self._runtime.policies[self._type]
        return Start(
            phase=Phase.RUNNING.value,
            token=ticket.token,
            worker=self._runtime.worker,
            pid=self.worker_pid or 0,
            at_ms=int((self.time_start or 0) * 1000),
            deliveries=ticket.attempt.deliveries,
            alone=int(self.runs_alone),
            id=self.id,
            task=self._type,
            queue=ticket.queue,
            max_crashes=policy.max_crashes,
            max_failures=policy.max_failures,
            payload_bytes=size_of(self._message),
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
        self._put_back_by = None if soft else causes.TIME_LIMIT
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        if self._ticket is None or self._fate_is_open:
            return None if self._fate_is_open else super().on_failure(exc_info, send_failed_event, return_ok)
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        try:
            return self._on_failure(error, exc_info, send_failed_event, return_ok)
        finally:
            self._left_pool()

    def _on_failure(self, error: BaseException, exc_info: Any, send_failed: bool, return_ok: bool) -> Any:
        cause = self._cause_of_death(error)
        if cause is not None:
            return self._died(cause, error)
        self._ended_well = not isinstance(error, (WorkerLostError, TimeLimitExceeded, Terminated))
        if isinstance(error, QuarantineRequested) and self._diverts:
            return self._ask_for_quarantine(causes.REQUESTED, str(error))
        if isinstance(error, Reject) and error.requeue:
            self._put_back_by = str(error.reason) if isinstance(error, RollbackRequested) else "rejected"
        elif self._is_kept_failure(error):
            state.task_ready(self)
            return self._ask_for_quarantine(causes.REJECTED, f"failed: {error!r}")
        return super().on_failure(exc_info, send_failed, return_ok)

    def _cause_of_death(self, error: BaseException) -> str | None:
        if state.should_terminate or self._already_cancelled or self._already_revoked:
            return None
        match error:
            case TaskDied():
                return error.cause
            case MemoryError() | MemoryExhausted():
                return causes.MEMORY_ERROR
            case SystemExit() | KeyboardInterrupt():
                return causes.SYSTEM_EXIT
            case WorkerLostError():
                return causes.from_worker_lost(str(error))
        return None

    def _is_kept_failure(self, error: BaseException) -> bool:
        ends = (Reject, Ignore, Retry, WorkerLostError, TimeLimitExceeded)
        acks = getattr(self.task, "acks_on_failure", None)
        if acks is None:
            acks = self.task.acks_on_failure_or_timeout is not False
        terminated = self._already_cancelled or self._already_revoked or state.should_terminate
        return self._diverts and not acks and not terminated and not isinstance(error, ends)

    @property
    def _diverts(self) -> bool:
        return bool(self.task.acks_late)

    # --- how it died ---------------------------------------------------------------------------

    def _died(self, cause: str, error: BaseException) -> None:
        state.task_ready(self)
        self._fate_is_open = self._on_record = True
        lost = partial(self._record_death, cause, error)
        self._runtime.clerk.do(lost, None if self._diverts else lambda: False)
        if not self._diverts:
            self._fail_as_celery_does(error)

    def _fail_as_celery_does(self, error: BaseException) -> None:
        """Fail an early-acknowledged task; Celery would end the whole worker for some of these errors."""
        self._fate_is_open = False
        try:
            raise error if isinstance(error, WorkerLostError) else WorkerLostError(repr(error))
        except WorkerLostError:
            super().on_failure(ExceptionInfo())

    def _record_death(self, cause: str, error: BaseException) -> None:
        """Blame exactly this message (SAP-2); in the clerk's thread, tried until it is on record."""
        runtime, start, mid = self._runtime, self.start(), self._mid
        if self._diverts and success_was_stored(self.task, self.id, ignored=self.ignore_result):
            runtime.bridge.call(self._finished_after_all)
            return
        timed_out = cause == causes.TIME_LIMIT
        try:
            recorded = runtime.ledger.crash(mid, start, cause=cause, shared=False, failure=timed_out)
        except StaleDelivery:
            runtime.bridge.call(partial(self._put_back, None))
            return
        if not self._diverts:
            return
        if recorded.finished:
            runtime.bridge.call(self._finished_after_all)
            return
        verdict = convict(recorded.history, Limits(start.max_crashes, start.max_failures))
        if verdict is None:
            told = partial(runtime.announce.candidate, self.id, self._type, cause, recorded.history.crashes)
            runtime.bridge.call(partial(self._put_back, told, error))
            return
        self._store(verdict, start)

    def _ask_for_quarantine(self, cause: str, reason: str) -> None:
        state.task_ready(self)
        self._fate_is_open = self._on_record = True
        self._runtime.clerk.do(partial(self._store, Verdict(Action.QUARANTINE, cause, reason), self.start()))

    def _store(self, verdict: Verdict, start: Start) -> None:
        """Keep the original first, acknowledge it afterwards."""
        try:
            self._runtime.keep(self._message, self._mid, start, verdict.cause, verdict.reason)
        except StaleDelivery:
            self._runtime.bridge.call(partial(self._put_back, None))
        else:
            self._runtime.bridge.call(super().acknowledge)

    def _finished_after_all(self) -> None:
        logger.warning("Task %s[%s] had finished before its process was lost", self._type, self.id)
        self._fate_is_open = self._on_record = False
        self.acknowledge()

    def _put_back(self, told: Any, error: BaseException | None = None) -> None:
        self._fate_is_open = False
        if told is not None:
            told()
        if error is not None and getattr(self.task, "retry_on_worker_lost", False) and self._retry(error):
            return
        self._to_front()
        super().reject(requeue=True)

    def _retry(self, error: BaseException) -> bool:
        """Let Celery send the retry that the task asked for; it is looked up before it runs."""
        limit = self.task.max_retries
        if limit is not None and self._context.retries >= limit:
            return False
        lost = error if isinstance(error, WorkerLostError) else WorkerLostError(repr(error))
        try:
            raise lost
        except WorkerLostError:
            info = ExceptionInfo()
        self._goes_on = self._ended_well = True
        with marking(self.id):
            return bool(self._retry_worker_lost(lost, info))

    # --- acknowledgement -----------------------------------------------------------------------

    def acknowledge(self) -> None:
        if self._fate_is_open or self.acknowledged:
            return
        super().acknowledge()
        if self._diverts:
            self._settle()

    def _settle(self, *, put_back: bool = False) -> None:
        """Take its entry out of the ledger, now that the broker was told."""
        if self._on_record:
            return
        self._on_record = True
        if self._ticket is None:
            if self.poison is not None:
                self._runtime.never_started(self.poison, put_back=put_back)
        elif put_back:
            self._runtime.interrupted(self._mid, self.start())
        else:
            if not self._ended_well:
                self._runtime.recorder.finish(self._ticket, self.id, self._type, Ended.DONE, "lost", 0.0)
            self._runtime.acknowledged(self, self._ticket, final=not self._goes_on)

    def reject(self, requeue: bool = False) -> None:
        if self._fate_is_open or self.acknowledged:
            return
        put_back_by, self._put_back_by = self._put_back_by, None
        if requeue and put_back_by == causes.TIME_LIMIT:
            self._died(causes.TIME_LIMIT, TimeLimitExceeded())
        elif requeue and put_back_by is not None:
            self._fate_is_open = self._on_record = True
            self._runtime.clerk.do(partial(self._record_rollback, put_back_by))
        else:
            super().reject(requeue=requeue)
            self._settle(put_back=requeue)

    def _record_rollback(self, cause: str) -> None:
        """Count the failure before the message can run again (WAS-2, WAS-3)."""
        try:
            self._runtime.ledger.rollback(self._mid, self.start(), cause=cause)
        except StaleDelivery:
            logger.warning("Task %s[%s] was rolled back by a start that is not its last", self._type, self.id)
        self._runtime.bridge.call(partial(self._put_back, None))

    def _to_front(self) -> None:
        self._message.to_front = True

    def _left_pool(self) -> None:
        if self._ticket is not None:
            self._runtime.left_pool(self._ticket.token)
            if not self._diverts:
                self._settle()

    @property
    def _mid(self) -> str:
        assert self._ticket is not None
        return self._ticket.mid
