"""Decides what becomes of a message whose task died, was rolled back, or asked for quarantine.

On record first, told to the broker afterwards: the clerk's thread writes to the ledger, tries again
while Redis is away, and only then lets the event loop acknowledge or put back (WAS-9). A message whose
strike cannot be recorded is held back, or the crash loop would be back.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from celery.utils.log import get_logger
from celery.worker import state

from celery_poison import causes
from celery_poison.errors import StaleDelivery
from celery_poison.evidence import NO_EVIDENCE, Evidence
from celery_poison.ledger.messages import Known
from celery_poison.records import Start
from celery_poison.results import success_was_stored
from celery_poison.verdict import Action, Limits, Verdict, convict

if TYPE_CHECKING:
    from celery_poison.worker.ending.request import GuardedRequest

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
        self._runtime.whereabouts.undecided.add(self._request)
        state.task_ready(self._request)
        self.is_open = self._request.is_on_record = True
        return self._request.start()

    def _close(self) -> None:
        self.is_open = False
        self._runtime.whereabouts.undecided.discard(self._request)

    # --- on the event loop (or a pool thread) --------------------------------------------------

    def died(self, cause: str, error: BaseException, evidence: Evidence = NO_EVIDENCE) -> None:
        """Its pool process died: exact blame (SAP-2)."""
        start = self._open()
        self._evidence = evidence
        if self._request.diverts:
            self._runtime.clerk.do(partial(self._record_death, start, cause, error))
        else:
            # Acknowledged long ago: journalled if the ledger is there, and failed as Celery would.
            self._runtime.clerk.do(partial(self._observe_death, start, cause), lambda: False)
            self._close()
            self._request.fail_as_celery_does(error)

    def wants_quarantine(self, cause: str, reason: str) -> None:
        """The task asked for it, or failed without acknowledging failures."""
        start = self._open()
        verdict = Verdict(Action.QUARANTINE, cause, reason)
        self._runtime.clerk.do(partial(self._keep_if_mine, verdict, start))

    def rolled_back(self, cause: str) -> None:
        """The task put its message back (WAS-1)."""
        start = self._open()
        self._runtime.clerk.do(partial(self._record_rollback, start, cause))

    def interrupted(self, cause: str, evidence: Evidence = NO_EVIDENCE) -> None:
        """It ended through nobody's fault; counted as a failure, so that it cannot go on for ever."""
        start = self._open()
        self._evidence = evidence
        self._runtime.clerk.do(partial(self._record_interruption, start, cause))

    # --- in the clerk's thread -----------------------------------------------------------------

    def _record_death(self, start: Start, cause: str, error: BaseException) -> None:
        request, runtime = self._request, self._runtime
        if self._has_new_owner(start):
            return
        if success_was_stored(request.task, request.id, ignored=request.ignore_result):
            runtime.bridge.call(self._finished_after_all)
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
            runtime.bridge.call(self._put_back)
            return
        if recorded.finished:
            runtime.bridge.call(self._finished_after_all)
            return
        verdict = convict(recorded.history, self._limits(start), gate_closed=recorded.gate_closed)
        if verdict is not None:
            self._store(verdict, start)
            return
        try_again = partial(self._give_another_try, cause, recorded.history.crashes, error)
        runtime.bridge.call(try_again)

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
        self._runtime.bridge.call(self._put_back)

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
        runtime.bridge.call(self._finished_after_all if finished else self._put_back)

    def _known(self) -> Known:
        known: Known = self._runtime.keeper.known(self._request.message, self._request.type, self._evidence)
        return known

    def _keep_if_mine(self, verdict: Verdict, start: Start) -> None:
        if not self._has_new_owner(start):
            self._store(verdict, start)

    def _has_new_owner(self, start: Start) -> bool:
        """Whether its worker was taken for dead meanwhile, and others have the message: it stays as it is."""
        if self._runtime.ownership.is_mine(self._request.mid, start):
            return False
        self._runtime.ownership.ended_too_late(self._request, lost=True)
        self._runtime.whereabouts.undecided.discard(self._request)
        return True

    def _store(self, verdict: Verdict, start: Start) -> None:
        """Keep the original first, acknowledge it afterwards."""
        request, bridge = self._request, self._runtime.bridge
        try:
            self._runtime.keeper.keep(request.message, request.mid, start, verdict.cause, verdict.reason)
        except StaleDelivery:
            bridge.call(self._put_back)
        else:
            bridge.call(self._acknowledge)

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
