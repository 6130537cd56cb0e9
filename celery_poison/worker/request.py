"""A guarded request: hears how its run ended, and keeps its message until what becomes of it is on record."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_poison import causes
from celery_poison.basics.calling import amend, tell
from celery_poison.broker.sealed import Sealed
from celery_poison.causes import NO_EVIDENCE, Evidence
from celery_poison.cells.cell import info_of
from celery_poison.decide import Disposition, End, EndedRun, Settlement, disposition
from celery_poison.headers import known_as
from celery_poison.model import Ended, Guilt
from celery_poison.plugin import marking
from celery_poison.rules.failures import Failure
from celery_poison.upstream.requests import NeverBegan, QuarantineRequested, TrialSpoilt, acks_end, read_end
from celery_poison.worker.child import KEPT, UNREACHED
from celery_poison.worker.outcome import Case
from celery_poison.worker.sending import SentRequest, Stage

#: Why what a person has released is in quarantine again, and not discarded as Celery would.
_EXPIRED = "it was released, and expired before it could begin"
_REVOKED = "it was released, and its id or a stamp is revoked: its worker will not run it before a restart"


class GuardedRequest(SentRequest):
    """Celery's request, with a start in the ledger."""

    _end: End | None = None
    #: What it raised, if that is to be kept; and what then becomes of its message.
    _failure: Failure | None = None
    _case: Case | None = None
    _is_counted = False
    #: It failed before its body began.
    _is_unreached = False
    #: Why a person wants it in quarantine, if one does.
    _is_wanted = ""
    #: Our own method was reached, where a user's class stands before it (:mod:`.combining`).
    has_heard = False

    def _stop_if_blocked(self) -> None:
        """Divert what was blocked, or caught by a hold, while it waited here (NEW-3, NEW-27).

        Raises:
            TaskRevokedError: to Celery, which gives the place in the pool to another.
        """
        needs, delivery = self.needs, self.poison
        plan = needs.plans.known.get(self._type)
        checker, task = needs.checker, self._type
        may_be = plan.is_blockable if plan is not None else checker.concerns(task)
        is_looked_into = plan.is_looked_into if plan is not None else checker.looks_into(task)
        if not (may_be or is_looked_into) or (delivery is not None and delivery.released):
            return
        policy, cause = needs.policies[task][0].at(self.consumed_from), causes.BLOCKED
        reason = str(checker.on_its_way_to_the_pool(self._message, task, policy)) if may_be else ""
        if not reason and is_looked_into and (caught := checker.catch(self._message, task)):
            cause, reason = caught.cause, caught.reason
        if not reason:
            return
        what = Disposition(Settlement.QUARANTINE, not needs.settings.observe_only, cause)
        if not what.holds:
            needs.outcomes.carry_out(Case(self, self.start(), what, reason))
            return
        if delivery is not None:
            needs.inflight.forget_admitted(delivery.start.token)
        self._carry_out(what, reason)
        raise TaskRevokedError(self.id)

    # --- how it ended --------------------------------------------------------------------------

    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> None:
        failed, _, runtime = failed__retval__runtime
        if failed or self._ticket is None:  # the latter in a worker without a ledger
            super().on_success(failed__retval__runtime, **kwargs)
        elif runtime is None:
            # A greenlet that was killed, by a cold shutdown for one: its pool takes that for a success.
            self._enter(Stage.LOST)
            self._message.is_blameless = True
            self.reject(requeue=True)
            self._left_pool(End.REVOKED)
        else:
            self._enter(Stage.ENDED)
            super().on_success(failed__retval__runtime, **kwargs)
            self._left_pool(End.RETURNED)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        self.has_heard = True
        if not soft and self._ticket is not None:
            self._settle_run(TimeLimitExceeded(timeout))  # reported here before on_failure, or after it
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        self.has_heard = True
        if self._ticket is None:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if self._is_wanted and read_end(error)[0] in (End.DIED, End.SPOILT, End.REVOKED):
            error = QuarantineRequested(self._is_wanted)
        if self.stage is Stage.HELD:
            return None
        self._is_unreached = any(getattr(each, UNREACHED, False) for each in (exc_info, error))
        kept: Failure | None = getattr(exc_info, KEPT, None)
        self._failure = kept and kept._replace(traceback=str(exc_info.traceback))
        try:
            if self._is_settled_by_us(error):
                return None
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            if self._case is not None:  # everybody has heard of the failure now, as in Celery
                self.needs.outcomes.carry_out(self._case)
            self._left_pool(read_end(error)[0])

    def _is_settled_by_us(self, error: BaseException) -> bool:
        """Whether what becomes of a run is our affair; of what we cannot settle Celery makes what it can."""
        try:
            return self._settle_run(error)
        except Exception as ours:
            self.needs.complain(ours)
            self.stage = Stage.LOST
            return False

    def _settle_run(self, error: BaseException) -> bool:
        """Do what becomes of a run that ended with ``error``; False when Celery is to go on with it."""
        run, evidence = self._examine(error)
        if self._end is None:
            tell(self.needs.extensions.ended, self.needs.complain, self.needs, self, run, error)
        self._end = run.end
        what = disposition(run)
        match what.settlement:
            case Settlement.CELERY:
                self._enter(Stage.ENDED if run.end.outcome else Stage.LOST)
                return False
            case Settlement.LEAVE:
                # Neither acknowledge nor put back: it was put back already, and may run elsewhere.
                state.task_ready(self)
                if not isinstance(error, NeverBegan):
                    self.needs.outcomes.confirm_new_owner(self)
                self._enter(Stage.OVERTAKEN)
                return True
            case Settlement.QUARANTINE if what.cause == causes.FAILURE:
                failure = self._failure
                if failure is not None and self._enter(Stage.HELD if what.holds else Stage.ENDED):
                    tries = f", attempt {self._context.retries + 1}" if self._context.retries else ""
                    reason = f"raised {failure.exception}{tries}"
                    self._case = Case(self, self.start(), what, reason, failure.evidence, error, failure)
                return False  # Celery tells of it as ever, and acknowledges nothing that is held
            case Settlement.QUARANTINE:
                reason = str(error) if run.end is End.QUARANTINED else f"failed: {error!r}"
                self._carry_out(what, reason)
            case _:
                self._carry_out(what, "", evidence, error)
        if not what.holds and run.end is End.DIED and not self.diverts and not run.observed:
            # Celery would end the whole worker for some of these errors.
            super().on_failure(info_of(_as_worker_lost(error)))
            return True
        return what.holds

    @property
    def brought_its_limit(self) -> bool:
        """Whether its message brought a hard time limit below that of its task."""
        own, task = self.time_limits[0], self._task
        usual = task.time_limit or task.app.conf.task_time_limit
        return bool(own) and not (usual and own >= usual)

    def _examine(self, error: BaseException) -> tuple[EndedRun, Evidence]:
        """Return the facts about a run that ended with ``error``, and the evidence of its death."""
        end, cause = read_end(error)
        evidence, task = NO_EVIDENCE, self._task
        if end is End.DIED:
            evidence = self.needs.exits.evidence_of(error, self.worker_pid)
            if isinstance(error, WorkerLostError) and evidence.cause != causes.UNKNOWN:
                cause = evidence.cause  # what became of the process, and not what was written about it
        elif end is End.TIMED_OUT:
            limit = self.time_limits[0] or task.time_limit
            evidence = replace(self.needs.exits.hanging(self.worker_pid or 0), time_limit_s=limit)
        elif isinstance(error, TrialSpoilt):
            evidence = error.evidence
        if evidence is not NO_EVIDENCE:
            needs, token = self.needs, self.poison_token
            hooks, complain = needs.extensions.testify, needs.complain
            evidence = amend(hooks, complain, evidence, needs.me.worker, token)
        run = EndedRun(
            End.OVERTAKEN if self.stage is Stage.OVERTAKEN else end,
            cause,
            acks_late=self.diverts,
            acks_end=acks_end(task, timed_out=end is End.TIMED_OUT),
            asked=evidence.is_from_outside,
            leaving=bool(state.should_terminate or self._already_cancelled or self._already_revoked),
            observed=self.needs.settings.observe_only,
            kept=self._failure is not None,
            rerun=self.needs.policies[self._type][0].rerun,
        )
        return run, evidence

    def _carry_out(
        self,
        what: Disposition,
        reason: str,
        evidence: Evidence = NO_EVIDENCE,
        error: BaseException | None = None,
    ) -> None:
        stage = Stage.HELD if what.holds else Stage.NOTED
        if not what.holds and what.settlement is Settlement.QUARANTINE:
            stage = Stage.ENDED  # noting that leaves its start on record: it is settled like any other
        if self._enter(stage):
            if what.holds:
                state.task_ready(self)
            self.needs.outcomes.carry_out(Case(self, self.start(), what, reason, evidence, error))

    def _left_pool(self, end: End) -> None:
        assert self._ticket is not None
        # What is kept has not ended well before it is stored: a copy of it would be dropped till then.
        well = end.mark is Ended.DONE and (self._case is None or not self._case.what.holds)
        self.needs.inflight.left_pool(self._ticket.token, ended_well=well)
        if not self._is_counted:  # a hard time limit is told twice
            self._is_counted = True
            for hold in self._holds:
                hold.ended(self.consumed_from, self, end)
        if not self.diverts:
            self._settle()

    def left_queue_of_pool(self) -> None:
        self._is_not_in_pool()
        self._ticket = None

    def pool_refused(self) -> None:
        """The pool did not take it: nothing is left of its way there; others decide what becomes of it."""
        if self._ticket is not None:
            self._is_not_in_pool()
        self._enter(Stage.SETTLED)

    def _is_not_in_pool(self) -> None:
        assert self._ticket is not None
        self.needs.inflight.pool_refused(self._ticket.token)
        for hold in self._holds:
            hold.ended(self.consumed_from, self, End.REVOKED)

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
        if not self.worker_pid or not self.needs.inflight.is_in_pool(self._ticket.token):
            return  # it will not begin; or it has ended, and its process may be at something else
        self._enter(Stage.OVERTAKEN)
        self._end_process()

    def hand_over(self, reason: str) -> None:
        """Move its message to quarantine, as a person wants; what runs is ended for that, without a strike.

        A process that runs others too goes on.
        """
        if not self.runs_alone or self.acknowledged:
            return
        if self._ticket is None:
            self._never_begins(Disposition(Settlement.QUARANTINE, holds=True, cause=causes.REQUESTED), reason)
        elif self.worker_pid and self.needs.inflight.is_in_pool(self._ticket.token):
            self._is_wanted = reason
            self._end_process()

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Have Celery discard it; what a person has released comes back to quarantine (NEW-26)."""
        if self.poison is None or not self.poison.release or self._ticket is not None or self.acknowledged:
            super()._announce_revoked(reason, terminated, signum, expired)
            return
        self._already_revoked = True
        if expired:  # Celery has just noted its id as revoked, for a later release, too
            state.revoked.discard(self.id)
        what = Disposition(Settlement.QUARANTINE, holds=True, cause=causes.REQUESTED)
        self._never_begins(what, _EXPIRED if expired else _REVOKED)

    def wait_in_ledger(self) -> None:
        """Give its message to the ledger, which keeps it until a worker can try it."""
        self._never_begins(Disposition(Settlement.PARK, holds=True))

    def _never_begins(self, what: Disposition, reason: str = "") -> None:
        self._ticket = self._make_ticket()
        self.needs.inflight.forget_admitted(self._ticket.token)
        self._carry_out(what, reason)

    def _end_process(self) -> None:
        pool = self._cells or self.needs.loop.consumer.pool
        if self._cells or (hasattr(pool, "terminate_job") and not self.needs.contained):
            pool.terminate_job(self.worker_pid, signal.SIGKILL)

    # --- its outcome is on record --------------------------------------------------------------

    def mark_overtaken(self) -> None:
        self._enter(Stage.OVERTAKEN)

    def acknowledge_now(self) -> None:
        self._enter(Stage.SETTLED)
        self.acknowledge()

    def put_back_now(self, *, failed: bool = False) -> None:
        """Put the message back to the front of its queue (WAS-3).

        Args:
            failed: its run failed, which its queue may count, too.
        """
        self._enter(Stage.SETTLED)
        if not self.acknowledged:
            self._message.to_front, self._message.is_blameless = True, not failed
            super().reject(requeue=True)

    def settle_as_finished(self, *, succeeded: bool) -> None:
        """Settle the start of a request that was lost after its end as one that ended well.

        Args:
            succeeded: its result is stored; else it may have asked for a retry.
        """
        self._end = End.RETURNED if succeeded else End.DIED
        self._enter(Stage.LOST)
        self.acknowledge()

    def try_again(self, error: BaseException | None) -> None:
        """Put it back, or send the retry that ``retry_on_worker_lost`` asks for."""
        self._enter(Stage.SETTLED)
        limit, tries = self._task.max_retries, self._context.retries
        send = getattr(self, "_retry_worker_lost", None)  # Celery 5.7 brought the option, and this
        is_wanted = send is not None and getattr(self._task, "retry_on_worker_lost", False)
        if error is not None and send is not None and is_wanted and (limit is None or tries < limit):
            lost = _as_worker_lost(error)
            with marking(self.id):  # the retry is looked up before it runs
                if send(lost, info_of(lost)):
                    return
        self.put_back_now(failed=True)

    # --- acknowledgement -----------------------------------------------------------------------

    def acknowledge(self) -> None:
        if self.is_kept or self.acknowledged:
            return
        if isinstance(self._message, Sealed):
            self._message.mark_done()
        super().acknowledge()
        if self.diverts:
            self._settle()

    def reject(self, requeue: bool = False) -> None:
        if self.is_kept or self.acknowledged:
            return
        super().reject(requeue=requeue)
        self._settle(put_back=requeue)

    @property
    def is_kept(self) -> bool:
        """Whether the message may be neither acknowledged nor put back now."""
        return self.stage in (Stage.HELD, Stage.OVERTAKEN)

    def _settle(self, *, put_back: bool = False) -> None:
        """Take its entry out of the ledger, now that the broker was told."""
        stage, ticket = self.stage, self._ticket
        if not self._enter(Stage.SETTLED) or stage is Stage.NOTED:
            return
        if ticket is None:
            if self.poison is not None:
                self.needs.outcomes.never_started(self.poison, put_back=put_back)
        elif put_back:
            self.needs.outcomes.interrupted(self.mid, self.start())
        else:
            if stage is not Stage.ENDED:
                self.needs.recorder.finish(ticket, self.id, self._type, Ended.DONE, "lost", 0.0)
            needs, went_back = self.needs, getattr(self._message, "went_back", None)
            copy = self.epoch != needs.loop.epoch if went_back is None else went_back
            if stage is Stage.ENDED and not (self._end or self.poison or copy or needs.me.rejoins):
                needs.deferred_cleanup.add_healthy(ticket.mid, ticket.token, known_as(self.id), self._type)
                return
            guilt = Guilt.UNPROVEN if self._is_unreached else (self._end or End.RETURNED).guilt
            needs.outcomes.acknowledged(self, ticket, guilt=guilt, copy=copy)


def _as_worker_lost(error: BaseException) -> WorkerLostError:
    return error if isinstance(error, WorkerLostError) else WorkerLostError(repr(error))
