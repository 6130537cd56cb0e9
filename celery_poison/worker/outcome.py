"""Decides what becomes of a message whose task died, was rolled back, or asked for quarantine.

On record first, told to the broker afterwards: the background thread writes to the ledger, tries again
while Redis is away, and only then lets the event loop acknowledge or put back (WAS-9). A message whose
strike cannot be recorded is held back, or the crash loop would be back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as TaskRetry
from celery.utils.log import get_logger
from celery.worker import state

from celery_poison import causes
from celery_poison.decide import Action, Verdict, convict
from celery_poison.errors import StaleDelivery
from celery_poison.evidence import NO_EVIDENCE, Evidence
from celery_poison.ledger import Ledger
from celery_poison.ledger.messages import Known
from celery_poison.ledger.queries import Queries
from celery_poison.model import Limits, Start
from celery_poison.requests import MemoryExhausted, TaskDied
from celery_poison.results import success_was_stored
from celery_poison.settings import Settings
from celery_poison.worker.background import Background, Retry
from celery_poison.worker.deferred_cleanup import Acknowledged, DeferredCleanup
from celery_poison.worker.exits import Exits
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease, rejoins_before
from celery_poison.worker.receive import Delivery
from celery_poison.worker.recorder import Recorder, Ticket
from celery_poison.worker.rejoin import Incarnation
from celery_poison.worker.resync import Resync

if TYPE_CHECKING:
    from celery_poison.worker.request import GuardedRequest

#: Ends that Celery handles itself, whatever the task says about acknowledging failures.
_OTHER_ENDS = (Reject, Ignore, TaskRetry, WorkerLostError, TimeLimitExceeded, Terminated)


def cause_of_death(error: BaseException) -> str | None:
    """Return what a pool process died of, or None when ``error`` is no death."""
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


def evidence_of(error: BaseException, pid: int | None, exits: Exits) -> Evidence:
    """Return what is known about a death beside its cause.

    Args:
        pid: of the process that ran it, if it has begun.
    """
    if isinstance(error, TaskDied) and error.evidence is not None:
        return replace(error.evidence, limit_kb=exits.limit_kb)
    if not pid or pid == os.getpid():
        return NO_EVIDENCE
    return (isinstance(error, WorkerLostError) and exits.evidence(pid)) or exits.so_far(pid)


def is_unacknowledged_failure(error: BaseException, task: object) -> bool:
    """Whether Celery would reject the message for good: its task does not acknowledge failures."""
    acks = getattr(task, "acks_on_failure", None)
    if acks is None:  # before Celery 5.7
        acks = getattr(task, "acks_on_failure_or_timeout", True) is not False
    return not acks and not isinstance(error, _OTHER_ENDS)


logger = get_logger("celery_poison")


class Ownership:
    """Answers for one worker; everything here waits for Redis, in the background thread."""

    def __init__(self, ledger: Ledger, lease: Lease, recorder: Recorder) -> None:
        self._ledger = ledger
        self._lease = lease
        self._recorder = recorder

    def is_mine(self, mid: str, start: Start) -> bool:
        """Whether the message of a start that has ended is still this worker's."""
        if not self._lease.is_doubtful(start.token):
            return True
        try:
            self._ledger.reclaim(mid, start)
        except StaleDelivery:
            return False
        return True

    def ended_too_late(self, request: Any, *, lost: bool = False) -> None:
        """A start ended after its worker was taken for dead.

        Args:
            lost: it is known to have lost its message, which may have ended elsewhere by now.
        """
        start = request.start()
        start = start._replace(worker=self._recorder.worker_of(start.token))
        try:
            self._ledger.survived(request.mid, start.token, request.id, start if lost else None)
        except StaleDelivery as error:
            logger.error("celery_poison: %s counts for nothing: %s", request.humaninfo(), error)


#: Seconds between two looks at what must be judged first.
PAUSE = 0.25


class Endings:
    """Takes the starts of one worker off the ledger, or has the background executor do it."""

    def __init__(
        self,
        me: Incarnation,
        settings: Settings,
        ledger: Ledger,
        ownership: Ownership,
        background: Background,
        deferred_cleanup: DeferredCleanup,
        resync: Resync,
        inflight: InFlight,
    ) -> None:
        self._me = me
        self._settings = settings
        self._ledger = ledger
        self._ownership = ownership
        self._background = background
        self._deferred_cleanup = deferred_cleanup
        self._resync = resync
        self._inflight = inflight

    def acknowledged(self, request: Any, ticket: Ticket, *, final: bool, copy: bool) -> None:
        """The broker was told that a delivery is done: forget its start.

        Args:
            final: nothing more comes of its task.
            copy: a copy of the message comes, or may: it is recognised by this start.
        """
        if rejoins_before(ticket.token) < self._me.rejoins:
            self._background.do(partial(self._ownership.ended_too_late, request))
            return
        if copy:
            self._resync.keep(Acknowledged(0.0, ticket.mid, ticket.token, request.id, request.type))
        if request.poison is not None and not request.poison.is_ordinary:
            acquit = partial(self._ledger.acquit, ticket.mid, request.start(), final=final, copy=copy)
            over = time.monotonic() + 3 * self._settings.activation_interval
            self._background.do(partial(self._acquit, request.poison, acquit, over))
        elif not copy:
            self._deferred_cleanup.add(ticket.mid, ticket.token, request.id, request.type)

    def _acquit(self, delivery: Delivery, acquit: Callable[[], None], over: float) -> None:
        """What was overtaken must be judged first, or its death would flag a message that has ended."""
        if delivery.overtaken is not None and time.monotonic() < over:
            mid, raw = delivery.overtaken
            if Queries(self._ledger).entry(mid) == raw:
                raise Retry(PAUSE)
        acquit()

    def interrupted(self, mid: str, start: Start) -> None:
        """A start ended through nobody's fault and its message goes back."""
        self._background.do(partial(self.interrupt, mid, start))

    def interrupt(self, mid: str, start: Start) -> None:
        """The same at once, by the caller's own thread."""
        known = {"release": self._settings.release}
        try:
            self._ledger.interrupt(mid, start, cause=causes.SHUTDOWN, known=known)
        except StaleDelivery:
            return

    def take_back_all(self) -> None:
        """Interrupt whatever this worker still has on record, now that it leaves.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        for mid, start, _ in Queries(self._ledger).running():
            if start.worker == self._me.worker:
                self.interrupt(mid, start)

    def never_started(self, delivery: Delivery, *, put_back: bool) -> None:
        """A delivery that was let in was revoked, expired or rejected before it went to the pool."""
        self._inflight.dropped(delivery.start.token)
        if put_back:
            self.interrupted(delivery.mid, delivery.start)
        else:
            self._background.do(partial(self._ledger.acquit, delivery.mid, delivery.start, final=True))


logger = get_logger(__name__)


class Fate:
    """The open question of one request.

    Attributes:
        is_open: nobody else may acknowledge or put back the message until this is decided.
    """

    def __init__(self, request: GuardedRequest) -> None:
        self._request = request
        self._runtime = request.runtime
        self.is_open = False
        self._evidence = NO_EVIDENCE

    def _open(self) -> Start:
        self._runtime.inflight.undecided.add(self._request)
        state.task_ready(self._request)
        self.is_open = self._request.is_on_record = True
        return self._request.start()

    def _close(self) -> None:
        self.is_open = False
        self._runtime.inflight.undecided.discard(self._request)

    # --- on the event loop (or a pool thread) --------------------------------------------------

    def died(self, cause: str, error: BaseException, evidence: Evidence = NO_EVIDENCE) -> None:
        """Its pool process died: exact blame (SAP-2)."""
        start = self._open()
        self._evidence = evidence
        if self._request.diverts:
            self._runtime.background.do(partial(self._record_death, start, cause, error))
        else:
            # Acknowledged long ago: journalled if the ledger is there, and failed as Celery would.
            self._runtime.background.do(partial(self._observe_death, start, cause), lambda: False)
            self._close()
            self._request.fail_as_celery_does(error)

    def wants_quarantine(self, cause: str, reason: str) -> None:
        """The task asked for it, or failed without acknowledging failures."""
        start = self._open()
        verdict = Verdict(Action.QUARANTINE, cause, reason)
        self._runtime.background.do(partial(self._keep_if_mine, verdict, start))

    def rolled_back(self, cause: str) -> None:
        """The task put its message back (WAS-1)."""
        start = self._open()
        self._runtime.background.do(partial(self._record_rollback, start, cause))

    def interrupted(self, cause: str, evidence: Evidence = NO_EVIDENCE) -> None:
        """It ended through nobody's fault; counted as a failure, so that it cannot go on for ever."""
        start = self._open()
        self._evidence = evidence
        self._runtime.background.do(partial(self._record_interruption, start, cause))

    # --- in the background thread -----------------------------------------------------------------

    def _record_death(self, start: Start, cause: str, error: BaseException) -> None:
        request, runtime = self._request, self._runtime
        if self._has_new_owner(start):
            return
        if success_was_stored(request.task, request.id, ignored=request.ignore_result):
            runtime.loop.call_in_loop(self._finished_after_all)
            return
        try:
            recorded = runtime.ledger.crash(
                request.mid,
                start,
                cause=cause,
                shared=False,
                failure=cause == causes.TIME_LIMIT,
                known=self._known(),
            )
        except StaleDelivery:
            runtime.loop.call_in_loop(self._put_back)
            return
        if recorded.finished:
            runtime.loop.call_in_loop(self._finished_after_all)
            return
        verdict = convict(recorded.history, self._limits(start), gate_closed=recorded.gate_closed)
        if verdict is not None:
            self._store(verdict, start)
            return
        try_again = partial(self._give_another_try, cause, recorded.history.crashes, error)
        runtime.loop.call_in_loop(try_again)

    def _limits(self, start: Start) -> Limits:
        return Limits(start.max_crashes, start.max_failures, trials=self._runtime.settings.has_trials)

    def _observe_death(self, start: Start, cause: str) -> None:
        mid, known = self._request.mid, self._known()
        self._runtime.ledger.crash(mid, start, cause=cause, shared=False, known=known)

    def _record_rollback(self, start: Start, cause: str) -> None:
        request = self._request
        if self._has_new_owner(start):
            return
        try:
            self._runtime.ledger.rollback(request.mid, start, cause=cause, known=self._known())
        except StaleDelivery:
            logger.warning("%s was rolled back by a start that is not its last", request.humaninfo())
        self._runtime.loop.call_in_loop(self._put_back)

    def _record_interruption(self, start: Start, cause: str) -> None:
        if self._has_new_owner(start):
            return
        request, runtime = self._request, self._runtime
        finished = success_was_stored(request.task, request.id, ignored=request.ignore_result)
        if not finished:
            leaving = runtime.stopping
            with suppress(StaleDelivery):
                finished = runtime.ledger.interrupt(
                    request.mid,
                    start,
                    cause=causes.SHUTDOWN if leaving else cause,
                    failure=not leaving,
                    known=self._known(),
                )
        runtime.loop.call_in_loop(self._finished_after_all if finished else self._put_back)

    def _known(self) -> Known:
        known: Known = self._runtime.quarantine_writer.journal_fields(
            self._request.message, self._request.type, self._evidence
        )
        return known

    def _keep_if_mine(self, verdict: Verdict, start: Start) -> None:
        if not self._has_new_owner(start):
            self._store(verdict, start)

    def _has_new_owner(self, start: Start) -> bool:
        """Whether its worker was taken for dead meanwhile, and others have the message: it stays as it is."""
        if self._runtime.ownership.is_mine(self._request.mid, start):
            return False
        self._runtime.ownership.ended_too_late(self._request, lost=True)
        self._runtime.inflight.undecided.discard(self._request)
        return True

    def _store(self, verdict: Verdict, start: Start) -> None:
        """Keep the original first, acknowledge it afterwards."""
        request, loop = self._request, self._runtime.loop
        try:
            self._runtime.quarantine_writer.write(
                request.message, request.mid, start, verdict.cause, verdict.reason
            )
        except StaleDelivery:
            loop.call_in_loop(self._put_back)
        else:
            loop.call_in_loop(self._acknowledge)

    # --- back on the event loop ----------------------------------------------------------------

    def _acknowledge(self) -> None:
        self._close()
        self._request.acknowledge()

    def _put_back(self) -> None:
        self._close()
        self._request.put_back_first()

    def _finished_after_all(self) -> None:
        logger.warning("%s had finished before its process was lost", self._request.humaninfo())
        self._request.is_on_record = False
        self._acknowledge()

    def _give_another_try(self, cause: str, crashes: int, error: BaseException) -> None:
        request = self._request
        self._close()
        self._runtime.announce.candidate(request.id, request.type, cause, crashes)
        if not request.retry_as_celery_does(error):
            self._put_back()
