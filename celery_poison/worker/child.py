"""Runs in the process that executes tasks: the start is on its way before any user code runs.

:func:`run_guarded` stands where Celery's own tracer stands as the pool's target. It covers the decoding
of the body, the user's ``task_prerun`` receivers, the task itself and everything that follows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.app.task import Task
from celery.app.trace import fast_trace_task, trace_task_ret
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_poison.causes import Evidence
from celery_poison.decide import End, Failing
from celery_poison.errors import LedgerUnavailable, StaleDelivery
from celery_poison.failures import Failure, carried_after, failure_of
from celery_poison.headers import FAILURES, mid_of
from celery_poison.ledger import Ledger
from celery_poison.model import Ended, Start
from celery_poison.requests import NeverBegan, StaleCompletion, TaskDied, read_end
from celery_poison.task import PoisonTask, attempts
from celery_poison.worker import crash_reports
from celery_poison.worker.effects import OncePerKey, Tied
from celery_poison.worker.lease import Lease
from celery_poison.worker.recorder import Given, Recorder, Ticket, Told, peak_memory_kb

#: Characters of a task's own words that the journal keeps.
NOTE_LENGTH = 500

#: After these nobody hears of a rollback.
LEAVE_NOTHING = (End.RETURNED, End.RETRIED, End.IGNORED, End.WAITS)

#: Set once in the worker's main process, before its pool forks.
_recorder: Recorder | None = None
_ledger: Ledger
_lease: Lease
#: True where tasks share the main process, which SystemExit and MemoryError must not reach.
_contained = False
#: True where nothing may become of a task but what Celery makes of it (``poison_observe_only``).
_observing = False

#: What runs in this process: task id -> its ticket and its entry in the ledger.
_running: dict[str, tuple[Ticket, bytes]] = {}

#: What running tasks have raised, by mid; None where that is not to be kept.
_raised: dict[str, Failure | None] = {}
#: What running tasks have published that leaves with their success, by mid.
_tied: dict[str, Tied] = {}
#: What the journal is told of runs that have returned, by mid.
_remarks: dict[str, str] = {}
#: On what the pool returns of a failed task: the Failure that is to be kept.
KEPT = "poison_failure"


def configure(
    recorder: Recorder, ledger: Ledger, lease: Lease, *, contained: bool, observing: bool = False
) -> None:
    """Make this process and its future children record through ``recorder``."""
    global _recorder, _ledger, _lease, _contained, _observing
    _recorder, _ledger, _lease, _contained = recorder, ledger, lease, contained
    _observing = observing
    PoisonTask._observed = observing
    PoisonTask.checked_by(_check_ownership)
    PoisonTask.failures_noted_by(_note_failure, _before_retry)
    PoisonTask.bodies_run_by(_once, _tying)


def still_running() -> bytes:
    """Return the commands that tell a Redis what runs in this process, in case that it has forgotten."""
    return _recorder.reminder(list(_running.values())) if _recorder is not None else b""


def _check_ownership(task: Task) -> None:
    """Raise StaleCompletion when the message of ``task``, which has just ended, has a new owner (EMS-8)."""
    found = _running.get(task.request.id or "")
    if _observing or found is None or not _lease.is_doubtful(found[0].token):
        return
    ticket, entry = found
    try:
        _ledger.reclaim(ticket.mid, Start.decode(entry))
    except StaleDelivery as error:
        raise StaleCompletion(str(error)) from None
    except LedgerUnavailable:
        return  # nobody can know


def _found(task: Task) -> tuple[Recorder, Ticket, Start] | None:
    """Return what is known of the run of a task; None where it does not run under our eyes."""
    found = _running.get(task.request.id or "") if _mid_in(task.request) else None
    if _recorder is None or _observing or found is None:
        return None
    return _recorder, found[0], Start.decode(found[1])


def _once(task: Task, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the body of a task, unless another one with its idempotency key runs or has returned."""
    found = _found(task)
    if found is None:
        return call(*args, **kwargs)
    recorder, ticket, start = found
    policy = recorder.policy(task.name)

    def body(*args: Any, **kwargs: Any) -> Any:
        with _tying(task) if policy.transactional_publish else nullcontext():
            result = call(*args, **kwargs)
        if tied := _tied.get(ticket.mid):
            tied.tie()
        return result

    if policy.idempotency_key is None or not recorder.diverts(task.name):
        return body(*args, **kwargs)
    once = OncePerKey(_ledger, task, policy, ticket.mid, start)
    result = once.run(body, args, kwargs, kept_with_end=lambda: _tied.get(ticket.mid))
    if once.first:
        _remarks[ticket.mid] = f"the result of {once.first}, which had its idempotency key first"
    return result


def _tying(task: Task) -> AbstractContextManager[None]:
    """Tie what is published while this is entered to the success of a task that runs here."""
    found = _found(task)
    if found is None:
        return nullcontext()
    recorder, ticket, start = found
    tied = _tied.get(ticket.mid)
    if tied is None:
        tied = _tied[ticket.mid] = Tied(recorder, _ledger, task, ticket, start)
    return tied.publishing()


# --- what tasks raise --------------------------------------------------------------------------------


def _queue_of(mid: str) -> str:
    return next((ticket.queue for ticket, _ in list(_running.values()) if ticket.mid == mid), "")


def _failing(task: str, mid: str, error: Exception) -> Failing:
    """Decide about what a task of this process raised, or wants to retry for."""
    recorder = _recorder
    if recorder is None or not recorder.diverts(task):
        return Failing.NOTHING
    policy = recorder.policy(task, _queue_of(mid))
    if not policy.looks_at_failures or read_end(error)[0] is not End.RAISED:
        return Failing.NOTHING
    return policy.failing(error)


def _mid_in(request: Any) -> str:
    """Return the mid of the message that runs; empty for a task that is called directly, or eagerly.

    Not its task id: in a pool of threads a retry begins before the attempt has ended that sent it.
    """
    if request.called_directly or request.is_eager or _recorder is None:
        return ""
    return mid_of(vars(request))


def _note_failure(task: Task, error: Exception) -> None:
    """Note what a task has raised, before Celery makes something of it that can be pickled."""
    if mid := _mid_in(task.request):
        _raised[mid] = failure_of(error) if _failing(task.name, mid, error) is not Failing.NOTHING else None


def _to_be_kept(mid: str, task: str, raised: BaseException | None) -> Failure | None:
    """Return what is to be kept of a run that raised, be it outside of the task's own code."""
    if not isinstance(raised, Exception) or read_end(raised)[0] is not End.RAISED:
        return None
    if mid in _raised:
        return _raised[mid]
    return failure_of(raised) if _failing(task, mid, raised) is not Failing.NOTHING else None


def _before_retry(task: Task, error: Exception) -> tuple[str, bool]:
    """Return what the retry is to carry, and whether there is to be none."""
    mid = _mid_in(task.request)
    if _observing or _recorder is None or not mid:
        return "", False
    if _failing(task.name, mid, error) is Failing.AT_ONCE:
        return "", True
    if not (_recorder.policy(task.name, _queue_of(mid)).keep_failures and _recorder.diverts(task.name)):
        return "", False
    return carried_after(getattr(task.request, FAILURES, None), failure_of(error)), False


# --- before and after a run --------------------------------------------------------------------------


def _is_lost(recorder: Recorder, ticket: Ticket) -> bool:
    """Whether the message of a start that has not begun was put back: its connection or lease was lost."""
    if _observing:
        return False
    try:
        return _lease.is_doubtful(ticket.token) and _ledger.is_declared_dead(recorder.worker_of(ticket.token))
    except LedgerUnavailable:
        return False  # nobody can know


def _begin(recorder: Recorder, ticket: Ticket, id: str, task: str) -> bytes:
    if not crash_reports.is_noting:
        crash_reports.note_signals()
    # An early acknowledgement may be out already: what is refused then would be lost.
    is_void = not _observing and recorder.diverts(task) and _lease.is_void(ticket.token)
    if is_void or _is_lost(recorder, ticket):
        raise NeverBegan("its message was put back before it began")
    return recorder.start(ticket, id, task, _is_lost)


def run_guarded(
    tracer: Callable[..., Any],
    told: Told,
    task: str,
    uuid: str,
    request: Any,
    body: Any,
    content_type: Any,
    content_encoding: Any,
) -> Any:
    """Record the start, run Celery's tracer, record the end; returns what the tracer returns."""
    recorder = _recorder
    if recorder is None:
        return tracer(task, uuid, request, body, content_type, content_encoding)
    ticket = Ticket.told(told)
    try:
        run = _running[uuid] = ticket, _begin(recorder, ticket, uuid, task)
    except NeverBegan as error:
        return _failed(error)
    attempts[uuid] = ticket.attempt
    if not _observing and recorder.policy(task).on_rollback is not None:
        recorder.open_attempt(ticket, request, body, content_type)
    finish = partial(_finish, recorder, ticket, uuid, task, Given(body, content_type, request))
    begun = time.monotonic()
    try:
        result = tracer(task, uuid, request, body, content_type, content_encoding)
    except (WorkerShutdown, WorkerTerminate):
        raise
    except (MemoryError, SystemExit) as error:
        return _died(error)
    except Exception as error:
        finish(error, time.monotonic() - begun)
        raise
    else:
        failed, info, _ = result
        raised, kept = _read_failure(info, ticket.mid, task) if failed else (None, None)
        finish(raised, time.monotonic() - begun, is_kept=kept is not None)
        return result
    finally:
        _forget(uuid, run)


def _read_failure(info: Any, mid: str, task: str) -> tuple[BaseException, Failure | None]:
    """Return what a task raised; and what is to be kept of that, which is handed on with ``info``."""
    raised = info.exception
    if isinstance(raised, ExceptionWithTraceback):
        raised = raised.exc
    kept = _to_be_kept(mid, task, raised)
    if kept is not None:
        setattr(info, KEPT, kept)
    return raised, kept


def _forget(id: str, run: tuple[Ticket, bytes]) -> None:
    """Forget a run that has ended; among threads a retry of it may run already, under the same task id."""
    for noted in (_raised, _tied, _remarks):
        if noted:
            noted.pop(run[0].mid, None)
    if _running.get(id) is run:
        del _running[id]
        attempts.pop(id, None)


def _finish(
    recorder: Recorder,
    ticket: Ticket,
    id: str,
    task: str,
    given: Given,
    error: BaseException | None,
    ran: float,
    is_kept: bool = False,
) -> None:
    """Send the end of a run; nothing where another start owns the message: this one leaves nothing behind."""
    end = read_end(error)[0] if error is not None else End.RETURNED
    if end is End.OVERTAKEN:
        return
    if not end.outcome:  # an error that only a main process can tell: the task has raised it itself
        end = End.RAISED
    note = str(error)[:NOTE_LENGTH] if end is End.DISCARDED else _remarks.pop(ticket.mid, "")
    # What is to be kept has not ended before it is stored: if its worker dies till then, it runs again.
    mark = Ended.INTERRUPTED if is_kept and not _observing else end.mark
    leaves_nothing = end in LEAVE_NOTHING and recorder.policy(task).on_rollback is not None
    tied = _tied.get(ticket.mid)
    with_it = tied.at_the_end(succeeded=end is End.RETURNED) if tied else b""
    recorder.finish(
        ticket, id, task, mark, end.outcome, ran, note, given, leaves_nothing=leaves_nothing, with_it=with_it
    )


def _died(error: BaseException) -> Any:
    if _observing or not _contained:
        raise error
    return _failed(TaskDied(read_end(error)[1], repr(error), Evidence(rss_kb=peak_memory_kb())))


def _failed(error: Exception) -> Any:
    try:
        raise error
    except Exception:
        return 1, ExceptionInfo(internal=True), 0.0


# Plain functions: the pool pickles its target by name for every task.


def run_fast(*arguments: Any) -> Any:
    """The pool's target where Celery would use ``fast_trace_task``."""
    return run_guarded(fast_trace_task, *arguments)


def run_plain(*arguments: Any) -> Any:
    """The pool's target where Celery would use ``trace_task_ret``."""
    return run_guarded(trace_task_ret, *arguments)
