"""Carries out what becomes of a message whose run ended: on record first, told to the broker afterwards.

What is to be done says :func:`celery_poison.decide.disposition`. The background thread writes it down,
tries again while Redis is away, and only then lets the event loop acknowledge or put back (WAS-9). A message
whose strike cannot be recorded is held back, or the crash loop would be back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.text import clean
from celery_poison.broker.sealed import Sealed
from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.decide import Disposition, Settlement, convict, not_rerun, stays_away
from celery_poison.errors import LedgerFull, LedgerUnavailable, StaleDelivery
from celery_poison.headers import known_as
from celery_poison.keep.stored_message import original, pack
from celery_poison.ledger.messages import RecordedEnd
from celery_poison.model import NO_HISTORY, Guilt, History, Limits, Start
from celery_poison.rules.failures import Failure
from celery_poison.upstream.results import StoredResults
from celery_poison.worker.delivery import Delivery
from celery_poison.worker.full import ask_again, most_parked
from celery_poison.worker.heartbeat import Shutdown
from celery_poison.worker.inflight import FOR_A_COPY, Acknowledged, DeferredCleanup, InFlight
from celery_poison.worker.lease import Lease, rejoins_before
from celery_poison.worker.pauses import Pauses, are_all_after_cut, of_cut
from celery_poison.worker.quarantine_writer import QuarantineWriter
from celery_poison.worker.recorder import Ticket
from celery_poison.worker.resync import Resync
from celery_poison.worker.site import Site
from celery_poison.worker.threads import Retry

logger = get_logger("celery_poison")

#: Seconds between two looks at what must be judged first.
PAUSE = 0.25
#: Seconds for which a message that goes back later is kept here at most, where it takes the place of others.
PARK_AFTER = 2.0
#: What the journal has of a message that was let in and acknowledged without running.
NEVER_RAN = "revoked, expired or rejected before it ran"


@dataclass(frozen=True, slots=True)
class Case:
    """One run that has ended, and what is to become of its message.

    Attributes:
        request: a :class:`~celery_poison.worker.request.GuardedRequest`.
        reason: why it goes to quarantine, if it does.
        evidence: what is known about its death.
        error: what Celery was told about its end.
        failure: what it raised, if that is to be kept.
    """

    request: Any
    start: Start
    what: Disposition
    reason: str = ""
    evidence: Evidence = NO_EVIDENCE
    error: BaseException | None = None
    failure: Failure | None = None


@dataclass(eq=False, repr=False)
class Outcomes:
    """Carries out, for one worker, what becomes of messages whose runs ended.

    Args:
        is_unblocked: whether the rule, or the hold, was taken back that kept a request from the pool.
    """

    site: Site
    lease: Lease
    deferred_cleanup: DeferredCleanup
    resync: Resync
    inflight: InFlight
    quarantine_writer: QuarantineWriter
    shutdown: Shutdown
    is_unblocked: Callable[[Any, str], bool] = lambda request, cause: False

    def __post_init__(self) -> None:
        self._me = self.site.me  # asked at each acknowledgement
        self._results = StoredResults()
        self._pauses = Pauses(self.site)

    # --- the message, or something beside it, is to blame --------------------------------------

    def carry_out(self, case: Case) -> None:
        """Record what becomes of a message; then tell its request, if that holds the message until then."""
        if case.what.holds:
            self.inflight.undecided.add(case.request)
            self.site.background.do(partial(self._decide, case))
        else:
            # Nothing waits for it: it is written down if the ledger is there.
            self.site.background.do(partial(self._note, case), lambda: False)

    def confirm_new_owner(self, request: Any) -> None:
        """A run ended whose message was put back already, and may run elsewhere."""
        self.site.background.do(partial(self._counts_still, request, lost=True))

    def _decide(self, case: Case) -> None:
        request, start, what = case.request, case.start, case.what
        if not self._is_mine(request.mid, start):
            self._counts_still(request, lost=True)
            return self._tell(case, request.mark_overtaken)
        if what.settlement is Settlement.QUARANTINE:
            if what.cause in causes.KEPT_FROM_POOL and self.is_unblocked(request, what.cause):
                if request.poison is not None:  # else nothing of it is on record
                    self.interrupt(request.mid, start)
                return self._tell(case, request.put_back_now)
            return self._keep(case, what.cause, case.reason)
        if what.settlement is Settlement.PARK:
            return self._park(case)
        may_have_finished = what.settlement is not Settlement.ROLL_BACK and what.cause != causes.NOT_REACHED
        stored = partial(self._results.has_success, request.task, request.id, start.at_ms)
        if may_have_finished and stored(ignored=request.ignore_result):
            return self._tell(case, partial(_finished_after_all, request, succeeded=True))
        try:
            recorded = self._record(case)
        except StaleDelivery:
            logger.warning(
                "celery_poison: %s ended by a start that is not its message's last", request.humaninfo()
            )
            return self._tell(case, request.put_back_now)
        if recorded.finished:
            self._tell(case, partial(_finished_after_all, request, succeeded=False))
        elif what.settlement in (Settlement.STRIKE, Settlement.ROLL_BACK) or self._stays_away(case):
            self._judge(case, recorded)
        else:
            name, error, reached = request.humaninfo(), case.error, what.cause != causes.NOT_REACHED
            self._put_back_after(case, 0.0 if reached else self._pauses.not_reached(name, error))

    def _judge(self, case: Case, recorded: RecordedEnd) -> None:
        start = case.start
        limits = Limits(start.max_crashes, start.max_failures, trials=self.site.settings.has_trials)
        verdict = convict(recorded.history, limits, gate_closed=recorded.gate_closed)
        if verdict is None and self._stays_away(case):
            verdict = not_rerun(case.what.cause)
        if verdict is not None:
            # At once: its queue may have no consumer soon (WAS-7).
            reason = verdict.reason + _raised_last(case, verdict.cause, recorded.history)
            # Whoever sends a message chooses that limit, and would have others blocked for it.
            own = case.what.cause == causes.TIME_LIMIT and case.request.brought_its_limit
            self._keep(case, verdict.cause, reason, proves_nothing=verdict.not_rerun or own)
        elif case.what.settlement is Settlement.ROLL_BACK:
            countdown, name = getattr(case.error, "countdown", 0.0), case.request.humaninfo()
            self._put_back_after(case, self._pauses.before_rollback(name, recorded.history, countdown))
        else:
            self._tell(case, partial(self._try_again, case, recorded.history.crashes))

    def _stays_away(self, case: Case) -> bool:
        rerun = self.site.policies[case.start.task][0].rerun
        return stays_away(case.what.settlement, case.what.cause, rerun=rerun, begun=case.start.has_begun)

    def _put_back_after(self, case: Case, seconds: float) -> None:
        if seconds > PARK_AFTER and not self.site.loop.can_lend and self._is_parked_for(case, seconds):
            return
        put_back = partial(case.request.put_back_now, failed=case.what.settlement is Settlement.ROLL_BACK)
        self._pauses.keep(seconds, partial(self._tell, case, put_back))

    def _is_parked_for(self, case: Case, seconds: float) -> bool:
        """Keep the original in the ledger until it is due (NEW-30); False where it has to stay here."""
        request, park = case.request, self.site.ledger.parking.park
        number = request.poison.park if request.poison is not None else 0
        words: dict[str, Any] = {"parcel": pack(original(request.message)), "pause": seconds}
        try:
            words["limit_bytes"] = most_parked(self.site)
            if not park(request.mid, b"", case.start, number=number, **words):
                return False
        except (LedgerFull, LedgerUnavailable) as error:
            logger.debug("celery_poison: %s waits in its worker: %s", request.humaninfo(), error)
            return False
        self._acknowledge(case)
        return True

    def _acknowledge(self, case: Case) -> None:
        """Acknowledge what the ledger keeps."""
        if isinstance(case.request.message, Sealed):
            case.request.message.mark_stored()
        self._tell(case, case.request.acknowledge_now)

    def _try_again(self, case: Case, crashes: int) -> None:
        self.site.announce.candidate(case.start.id, case.start.task, case.what.cause, crashes)
        case.request.try_again(case.error)

    def _keep(self, case: Case, cause: str, reason: str, *, proves_nothing: bool = False) -> None:
        """Keep the original first, acknowledge it afterwards."""
        request = case.request
        try:
            self.quarantine_writer.write(
                *(request.message, request.mid, case.start, cause, reason, case.failure),
                has_run=case.start.has_begun and cause not in causes.KEPT_FROM_POOL,
                proves_nothing=proves_nothing,
            )
        except StaleDelivery:
            self._tell(case, request.put_back_now)
        else:
            self._acknowledge(case)

    def _park(self, case: Case) -> None:
        """Keep the original until it can run, and acknowledge it."""
        request, effect = case.request, getattr(case.error, "effect", "")
        parcel = pack(original(request.message))
        try:
            self.site.ledger.parking.await_effect(
                request.mid, case.start, effect, parcel, most_parked(self.site)
            )
        except LedgerFull as error:
            raise ask_again(error) from error
        except StaleDelivery:
            return self._tell(case, request.put_back_now)
        why = "its idempotency key" if case.error is not None else "a free cell"
        logger.info("celery_poison: %s waits for %s", request.humaninfo(), why)
        self._acknowledge(case)

    def _tell(self, case: Case, call: Callable[[], Any]) -> None:
        """End the wait for a decision, on the event loop."""

        def tell() -> None:
            self.inflight.undecided.discard(case.request)
            call()

        self.site.loop.call_in_loop(tell)

    def _note(self, case: Case) -> None:
        """Write down what would become of a message; Celery settles it."""
        request, start, what = case.request, case.start, case.what
        keep = partial(self.quarantine_writer.would_quarantine, request.message, request.mid, start)
        if what.settlement is Settlement.QUARANTINE:
            return keep(what.cause, case.reason)
        with suppress(StaleDelivery):
            recorded = self._record(case)
            if what.settlement is Settlement.INTERRUPT or recorded.finished or not start.diverts:
                return
            verdict = convict(recorded.history, start.limits, gate_closed=recorded.gate_closed)
            if verdict is not None:
                keep(verdict.cause, verdict.reason, has_died=True)

    def _record(self, case: Case) -> RecordedEnd:
        start, what, mid = case.start, case.what, case.request.mid
        known = self.quarantine_writer.journal_fields(case.request.message, start.task, case.evidence)
        if what.settlement is Settlement.ROLL_BACK:
            return self.site.ledger.messages.rollback(mid, start, cause=what.cause, known=known)
        if what.settlement is Settlement.STRIKE:
            failure = what.failure and bool(start.diverts)
            return self.site.ledger.messages.crash(
                mid, start, cause=what.cause, shared=False, failure=failure, known=known
            )
        cause, failure = what.cause, what.failure
        if self.shutdown.is_begun:
            cause, failure = causes.SHUTDOWN, False
        finished = self.site.ledger.messages.interrupt(mid, start, cause=cause, failure=failure, known=known)
        return RecordedEnd(NO_HISTORY, finished=finished)

    # --- no message is to blame ----------------------------------------------------------------

    def acknowledged(self, request: Any, ticket: Ticket, *, guilt: Guilt, copy: bool) -> None:
        """The broker was told that a delivery is done: forget its start.

        Args:
            guilt: what its end proves.
            copy: a copy of the message comes, or may: it is recognised by this start.
        """
        end = Acknowledged(0.0, ticket.mid, ticket.token, known_as(request.id), request.type, guilt)
        if rejoins_before(ticket.token) < self._me.rejoins:
            keep_for = FOR_A_COPY if copy else self.site.settings.activation_interval
            self.deferred_cleanup.keep([end], keep_for)  # no monitor recovers this former life any more

            def ended_in_a_former_life() -> None:
                if self._counts_still(request, guilt) and _has_history(request):
                    self.site.ledger.messages.acquit(request.mid, request.start(), guilt, copy=True)

            return self.site.background.do(ended_in_a_former_life)
        if copy:
            self.resync.keep(end)
        else:  # a little later, since the acknowledgement may be lost with its connection
            self.deferred_cleanup.add(end)
        if _has_history(request):
            over = time.monotonic() + 3 * self.site.settings.activation_interval
            acquittal = ticket.mid, request.start(), guilt
            self.site.background.do_together(self._acquit, (acquittal, request.poison.overtaken, over))

    def _acquit(
        self, ended: Sequence[tuple[tuple[str, Start, Guilt], tuple[str, bytes] | None, float]]
    ) -> list[Exception | None]:
        """Record what the ends of messages prove, each with what it has overtaken.

        That is judged first, until a time: its death would flag a message that has ended.
        """
        waits = [
            overtaken is not None
            and time.monotonic() < over
            and self.site.ledger.read.entry(overtaken[0]) == overtaken[1]
            for _, overtaken, over in ended
        ]
        ready = [acquittal for (acquittal, _, _), waiting in zip(ended, waits, strict=True) if not waiting]
        for (_, start, _), was_flagged in zip(
            ready, self.site.ledger.messages.acquit_many(ready, copy=True), strict=True
        ):
            if was_flagged:
                self.site.announce.acquitted(start.id, start.task)
        return [Retry(PAUSE) if waiting else None for waiting in waits]

    def interrupted(self, mid: str, start: Start) -> None:
        """A start ended through no fault of its message, which goes back."""
        self.site.background.do(partial(self.interrupt, mid, start))

    def interrupt(self, mid: str, start: Start) -> bool:
        """The same at once, by the caller's own thread; return whether the start had ended after all."""
        with suppress(StaleDelivery):
            known = {"release": self.site.settings.code_version}
            return self.site.ledger.messages.interrupt(mid, start, cause=causes.SHUTDOWN, known=known)
        return False

    def take_back_all(self) -> None:
        """Interrupt whatever this worker still has on record, now that it leaves.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        for mid, start, _ in self.site.ledger.read.running():
            if start.worker == self.site.me.worker and self.interrupt(mid, start):
                # Its end was not heard of here, and its message goes back: the copy is recognised by it.
                self.site.ledger.messages.acquit(mid, start, Guilt.UNPROVEN, copy=True)

    def never_started(self, delivery: Delivery, *, put_back: bool) -> None:
        """A delivery that was let in was revoked, expired or rejected before it went to the pool."""
        self.inflight.forget_admitted(delivery.start.token)
        # Now: open, it would make a kill a crash; closed after its entry has gone, it would stay there.
        delivery.close_mark(self.site.recorder)
        if put_back:
            self.interrupted(delivery.mid, delivery.start)
        else:
            ends = partial(
                self.site.ledger.messages.acquit,
                *(delivery.mid, delivery.start, Guilt.UNPROVEN),
                why=NEVER_RAN,
            )
            self.site.background.do(ends)

    # --- it may belong to others by now (EMS-8): waits for Redis, in the background thread -----------------

    def _is_mine(self, mid: str, start: Start) -> bool:
        """Whether the message of a start that has ended is still this worker's."""
        if not self.lease.is_doubtful(start.token):
            return True
        try:
            self.site.ledger.messages.reclaim(mid, start)
        except StaleDelivery:
            return False
        return True

    def _counts_still(self, request: Any, guilt: Guilt = Guilt.UNPROVEN, *, lost: bool = False) -> bool:
        """Whether a start still counts that ended after its worker was taken for dead.

        Args:
            lost: it is known to have lost its message, which may have ended elsewhere by now.
        """
        start = request.start()
        start = start._replace(worker=self.site.recorder.worker_of(start.token))
        try:
            counted = start if lost else None
            self.site.ledger.messages.revoke_strike(request.mid, start.token, start.id, guilt, counted)
        except StaleDelivery as error:
            logger.error("celery_poison: %s counts for nothing: %s", request.humaninfo(), error)
            return False
        return True


def _raised_last(case: Case, cause: str, history: History) -> str:
    """Return what the last of many put-backs was for, where the task has raised something."""
    if cause != causes.FAILURES or case.what.settlement is not Settlement.ROLL_BACK or case.error is None:
        return ""
    last = f"; last: {clean(repr(case.error))[:200]}"
    if not are_all_after_cut(history):
        return last
    return f"{last}; each after {of_cut(history)}"


def _has_history(request: Any) -> bool:
    return request.poison is not None and not request.poison.is_ordinary


def _finished_after_all(request: Any, *, succeeded: bool) -> None:
    logger.warning("celery_poison: %s had finished before its process was lost", request.humaninfo())
    request.settle_as_finished(succeeded=succeeded)
