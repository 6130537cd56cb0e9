"""Runs in the process that executes tasks: the start is on its way before any user code runs.

:func:`run_guarded` stands where Celery's own tracer stands as the pool's target. It covers the decoding
of the body, the user's ``task_prerun`` receivers, the task itself and everything that follows it.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any, NoReturn, TypeVar, cast

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.app.task import Task
from celery.app.trace import fast_trace_task, trace_task_ret
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_poison.basics.calling import within
from celery_poison.basics.parts import Tie
from celery_poison.causes import Evidence
from celery_poison.decide import End, Failing
from celery_poison.errors import ConfigurationError, LedgerUnavailable, StaleDelivery
from celery_poison.headers import FAILURES
from celery_poison.model import Attempt, Ended, Start
from celery_poison.plugin import attempts, plugin_of
from celery_poison.rules.failures import Failure, carried_after, failure_of
from celery_poison.task import running
from celery_poison.upstream.requests import (
    BodyNotReached,
    MemoryExhausted,
    NeverBegan,
    StaleCompletion,
    TaskDied,
    of_the_tracer,
    read_end,
)
from celery_poison.worker import crash_reports
from celery_poison.worker.high_water import high_water
from celery_poison.worker.lease import born_as
from celery_poison.worker.recorder import Given, Recorder, Ticket, Told
from celery_poison.worker.site import Serving, serving_as

T = TypeVar("T")

#: Characters of a task's own words that the journal keeps.
NOTE_LENGTH = 500

#: Ends after which no rollback is reported.
LEAVE_NOTHING = (End.RETURNED, End.RETRIED, End.IGNORED, End.WAITS, End.NOT_REACHED)


@dataclass(slots=True, eq=False)
class RunningTask:
    """A run in this process, as far as it is known.

    Attributes:
        serving: for whom it runs.
        entry: its start in the ledger.
        failure: what it has raised, if that is to be kept; once ``has_raised``, it need not be asked again.
        tied: what it has published that leaves with its success.
        remark: what the journal is told of it when it has returned.
        is_in_body: its body has begun, or what stands around it.
        has_run: its body itself has.
        thread: in which it runs, as ``threading.get_ident`` names it.
        mark_kb: see :meth:`HighWater.peaks_kb`.
        is_copy: this process was forked by a task: the run goes on in another one.
    """

    serving: Serving
    ticket: Ticket
    entry: bytes
    has_raised: bool = False
    failure: Failure | None = None
    tied: Tie | None = None
    remark: str = ""
    is_in_body: bool = False
    has_run: bool = False
    thread: int = field(default_factory=get_ident)
    mark_kb: int | None = None
    is_copy: bool = False

    @property
    def recorder(self) -> Recorder:
        return self.serving.recorder

    @property
    def observes(self) -> bool:
        return self.serving.observes

    # --- for the task: task.RunHere ----------------------------------------------------------------

    def enters(self) -> bool:
        is_first, self.is_in_body = not self.is_in_body, True
        return is_first

    def call(self, task: Task, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the body of a task; extensions stand around that of a task with options of theirs."""

        def run() -> Any:
            self.has_run = True
            try:
                return body(*args, **kwargs)
            finally:
                if self.is_copy:
                    _leave(sys.exception())

        if not self.serving.recorder.policy(task.name).sections:
            return self._keep_tied(run())
        hooks = plugin_of(task.app).extensions

        def inner() -> Any:
            with within(hook(self, task) for hook in hooks.within_body):
                result = run()
            return self._keep_tied(result)

        around: Callable[[], Any] = inner
        for hook in reversed(hooks.around_body):
            around = partial(hook, self, task, around, (args, kwargs))
        return around()

    def _keep_tied(self, result: Any) -> Any:
        """Keep what the body has published with its success, now that it has returned."""
        if self.tied:
            self.tied.keep()
        return result

    def tying(self, task: Task) -> AbstractContextManager[None]:
        hooks = plugin_of(task.app).extensions.tying
        if not hooks:
            raise ConfigurationError("publishing() needs the extension outbox, which is not installed")
        return within(hook(self, task) for hook in hooks)

    def follow(self, task: Task, rows: Iterable[T], key: Callable[[T], object] | None) -> Iterator[T]:
        # What the rows themselves raise is the task's: they may be a query.
        for hook in plugin_of(task.app).extensions.following:
            if (followed := hook(self, rows, key)) is not None:
                return followed
        return iter(rows)

    def check_ownership(self) -> None:
        if not self.serving.lease.is_doubtful(self.ticket.token):
            return
        try:
            self.serving.ledger.messages.reclaim(self.ticket.mid, Start.decode(self.entry))
        except StaleDelivery as error:
            raise StaleCompletion(str(error)) from None
        except LedgerUnavailable:
            return  # Redis is away: unknown

    def failing(self, task: str, error: Exception) -> Failing:
        """Decide about what a task of this process raised, or wants to retry for."""
        policy = self.recorder.policy(task, self.ticket.queue)
        if not (self.recorder.diverts(task, self.ticket) and read_end(error)[0] is End.RAISED):
            return Failing.NOTHING
        return policy.failing(error)

    def note_failure(self, task: Task, error: Exception) -> None:
        self.has_raised = True
        self.failure = failure_of(error) if self.failing(task.name, error) is not Failing.NOTHING else None

    def before_retry(self, task: Task, error: Exception) -> tuple[str, bool]:
        if self.failing(task.name, error) is Failing.AT_ONCE:
            return "", True
        policy = self.recorder.policy(task.name, self.ticket.queue)
        if not (policy.keep_failures and self.recorder.diverts(task.name, self.ticket)):
            return "", False
        return carried_after(getattr(task.request, FAILURES, None), failure_of(error)), False


#: ``task.running``, by the class of its runs: this module alone adds to it.
_running = cast("dict[str, RunningTask]", running)
#: On what the pool returns of a failed task: the Failure that is to be kept.
KEPT = "poison_failure"
#: On the same, or on what was raised: it came before the body of the task.
UNREACHED = "poison_unreached"


def _disown() -> None:
    """Mark, in a process that was just forked, what runs in the other one."""
    for run in _running.values():
        run.is_copy = True


os.register_at_fork(after_in_child=_disown)


def _leave(error: BaseException | None) -> NoReturn:
    """End a process that a task has forked, where it leaves the task's body, as ``multiprocessing`` does.

    Beyond it are the result of the task and the end of its run, which are its parent's; and then Celery's
    loop, in which it would take messages beside its parent.
    """
    code = 0 if error is None else 1
    with suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error is not None and (not isinstance(error, SystemExit) or isinstance(error.code, str)):
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(code & 0xFF)


def still_running(boot_id: str) -> bytes:
    """Return the commands that tell a Redis what runs here for a worker, in case that it has forgotten."""
    if (serving := serving_as(boot_id)) is None:
        return b""
    mine = [(run.ticket, run.entry) for run in list(_running.values()) if run.serving is serving]
    return serving.recorder.reminder(mine)


def threads() -> dict[str, int]:
    """Return in which thread of this process each start runs, by its token; from any thread."""
    return {run.ticket.token: run.thread for run in list(_running.values())}


# --- before and after a run --------------------------------------------------------------------------


def _is_lost(serving: Serving, ticket: Ticket) -> bool:
    """Whether the message of a start that has not begun was put back: its connection or lease was lost."""
    if serving.observes or not serving.lease.is_doubtful(ticket.token):
        return False
    try:
        return serving.ledger.fleet.is_declared_dead(serving.recorder.worker_of(ticket.token))
    except LedgerUnavailable:  # unknown, unless the worker has heard it meanwhile
        return serving.lease.is_outdated(ticket.token)


def _begin(serving: Serving, ticket: Ticket, id: str, task: str) -> bytes:
    recorder = serving.recorder
    if not crash_reports.is_noting:
        crash_reports.note_signals()
    # An early acknowledgement may be out already: what is refused then would be lost.
    is_void = not serving.observes and recorder.diverts(task, ticket) and serving.lease.is_void(ticket.token)
    if is_void or _is_lost(serving, ticket):
        raise NeverBegan("its message was put back before it began")
    return recorder.start(ticket, id, task, partial(_is_lost, serving, ticket))


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
    ticket = Ticket.told(told)
    if (serving := serving_as(born_as(ticket.token))) is None:
        return tracer(task, uuid, request, body, content_type, content_encoding)
    recorder = serving.recorder
    try:
        run = _running[ticket.mid] = RunningTask(serving, ticket, _begin(serving, ticket, uuid, task))
    except (NeverBegan, BodyNotReached) as error:
        return _failed(error)
    _mark_memory(run)
    attempts[uuid] = attempt = Attempt(*ticket.attempt)  # an object of its own
    if not serving.observes and recorder.policy(task).keeps_attempts:
        recorder.open_attempt(ticket, request, body, content_type)
    finish = partial(_finish, run, uuid, task, (body, content_type, request), time.monotonic())
    trace = partial(tracer, task, uuid, request, body, content_type, content_encoding)
    try:
        return _trace(run, task, trace, finish)
    finally:
        # Its own: among threads a retry may run already, under the same task id.
        if _running.get(ticket.mid) is run:
            del _running[ticket.mid]
        if attempts.get(uuid) is attempt:
            del attempts[uuid]


def _trace(run: RunningTask, task: str, trace: Callable[[], Any], finish: Callable[..., None]) -> Any:
    """Run Celery's tracer, and send the end by ``finish``, except where the main process sends it."""
    serving = run.serving
    try:
        result = trace()
        if run.is_copy:  # forked outside of the body, or only observed: it tells the ledger nothing
            return result
    except (WorkerShutdown, WorkerTerminate):
        raise
    except (MemoryError, SystemExit) as error:
        origin = error.__context__ if isinstance(error, MemoryExhausted) else error
        if run.is_copy:
            raise
        stack = crash_reports.note_raised(origin or error)
        if serving.observes or not serving.contained:
            raise
        evidence = Evidence(rss_kb=high_water.peak_kb(), stack=stack)
        return _failed(TaskDied(read_end(error)[1], repr(error), evidence))
    except Exception as error:  # the tracer's own: Redis went while it stored what the task had returned
        goes_back = not (run.is_in_body or serving.observes) and run.recorder.diverts(task, run.ticket)
        finish(ended := of_the_tracer(error, goes_back=goes_back))
        if not run.has_run:
            with suppress(Exception):
                setattr(ended, UNREACHED, True)
        if ended is error and not serving.contained:
            raise
        return _failed(ended)  # only prefork tells of what its target raises: it would be held for ever
    else:
        raised, kept = _read_failure(result[1], run, task) if result[0] else (None, None)
        finish(raised, is_kept=kept is not None)
        return result


def _mark_memory(run: RunningTask) -> None:
    """Begin the run's own mark of memory; what runs beside another has none, and takes it the other's."""
    if len(_running) == 1:
        run.mark_kb = high_water.begin()
    else:
        for each in list(_running.values()):
            each.mark_kb = None


def _read_failure(info: Any, run: RunningTask, task: str) -> tuple[BaseException, Failure | None]:
    """Return what a task raised; and what is to be kept of that, which is handed on with ``info``."""
    raised = info.exception
    if isinstance(raised, ExceptionWithTraceback):
        raised = raised.exc
    kept = None
    if isinstance(raised, Exception) and read_end(raised)[0] is End.RAISED:
        if run.has_raised:
            kept = run.failure
        elif run.failing(task, raised) is not Failing.NOTHING:  # outside of the task's own code
            kept = failure_of(raised)
    if kept is not None:
        setattr(info, KEPT, kept)
    if not run.has_run:
        setattr(info, UNREACHED, True)
    return raised, kept


def _finish(
    run: RunningTask,
    id: str,
    task: str,
    given: tuple[Any, Any, Mapping[str, Any]],
    begun: float,
    error: BaseException | None,
    is_kept: bool = False,
) -> None:
    """Send the end of a run; nothing where another start owns the message: this one leaves nothing behind."""
    end = read_end(error)[0] if error is not None else End.RETURNED
    if end is End.OVERTAKEN:
        return
    if not end.outcome:  # an error that only a main process can tell: the task has raised it itself
        end = End.RAISED
    note = str(error)[:NOTE_LENGTH] if end is End.DISCARDED else run.remark
    # What is to be kept has not ended before it is stored: if its worker dies till then, it runs again.
    mark = Ended.INTERRUPTED if is_kept and not run.serving.observes else end.mark
    recorder = run.serving.recorder
    if end in LEAVE_NOTHING and recorder.policy(task).keeps_attempts:
        recorder.close_attempt(run.ticket)
    recorder.finish(
        run.ticket,
        id,
        task,
        mark,
        end.outcome,
        time.monotonic() - begun,
        note,
        Given(*given, run.mark_kb),
        with_it=run.tied.at_the_end(succeeded=end is End.RETURNED) if run.tied else b"",
    )


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
