"""Every decision about a message, apart from every mechanism: facts and limits in, one decision out.

=================== ============================================================== =========================
:func:`judge`       may a message that arrives be let in?                          asked by ``admission``
:func:`convict`     do its deaths and failures prove it guilty?                    after each of them
:func:`disposition` what becomes of a message whose run ended?                     asked by ``request``
:func:`failing`     is what a task raised to be kept, or not to be retried?        asked by ``child``
:func:`end_of`      what becomes of a start whose worker died?                     asked by ``failover``
=================== ============================================================== =========================

Nothing here knows Redis or Celery. docs/verdict.md has the same rules in English, and tests try them all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from celery_poison import causes
from celery_poison.model import ALONE, NO_HISTORY, Ended, Guilt, History, Limits, Phase, Start
from celery_poison.rules.doubts import NOTHING_ELSE, Blow, proves
from celery_poison.states import State

# --- may it be let in? --------------------------------------------------------------------------------


class Action(Enum):
    """The action of a worker on a message that it was handed."""

    RUN = "run"
    RUN_ALONE = "run_alone"
    WAIT = "wait"
    QUARANTINE = "quarantine"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Facts:
    """A worker's knowledge of a message before it lets it in.

    Attributes:
        history: the lineage's counts.
        foreign_start: there is an entry of a start that is not this delivery's own.
        ended: how that start ended, if it did.
        kept: state of the record in quarantine, if there is one.
        release: number of the release that published this copy (0: none).
        last_release: number of the newest release of this message (0: never released).
        park: number of the parking that published this copy (0: none).
        last_park: number of the newest parking of this message, raised when it is over (0: unknown).
        finished: the message was parked, and a start of it has finished since.
        payload_bytes: size of the body as received.
        blocked: the rule on the block list that it falls under, or the hold that catches it, as a sentence.
        blocked_for: the cause of that.
        cut_off: what has cut a run of this very message off; empty: nothing has.
        gate_closed: so many workers died lately that the fleet gate is closed.
    """

    history: History = NO_HISTORY
    foreign_start: bool = False
    ended: Ended = Ended.NOT
    kept: State | None = None
    release: int = 0
    last_release: int = 0
    park: int = 0
    last_park: int = 0
    finished: bool = False
    payload_bytes: int = 0
    blocked: str = ""
    blocked_for: str = causes.BLOCKED
    cut_off: str = ""
    gate_closed: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether an earlier start under the same mid has ended well."""
        return self.finished or (self.foreign_start and self.ended is Ended.DONE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The action, and its reason.

    Attributes:
        not_rerun: it proves nothing: its task must not run twice (NEW-16).
    """

    action: Action
    cause: str = ""
    reason: str = ""
    not_rerun: bool = False


def judge(facts: Facts, limits: Limits) -> Verdict:
    """Decide what happens to a message that is about to be let in (SAP-3, SAP-6, WAS-3, TP1-8)."""
    stray = _stray(facts)
    if stray is not None:
        return stray
    if facts.foreign_start:
        return Verdict(Action.WAIT, reason="an earlier start of this message has not ended")
    if limits.max_payload_bytes is not None and facts.payload_bytes > limits.max_payload_bytes:
        reason = f"its body has {facts.payload_bytes} bytes, max_payload_bytes is {limits.max_payload_bytes}"
        return Verdict(Action.QUARANTINE, causes.PAYLOAD, reason)
    convicted = convict(facts.history, limits, gate_closed=facts.gate_closed)
    if convicted is None and facts.cut_off and not limits.rerun:
        return not_rerun(facts.cut_off)
    # A release is a person's decision about this very message: no rule stands against it (NEW-3).
    if convicted is None and facts.blocked and not facts.last_release:
        return Verdict(Action.QUARANTINE, facts.blocked_for, facts.blocked)
    return convicted or _admit(facts.history, limits)


def convict(history: History, limits: Limits, *, gate_closed: bool = False) -> Verdict | None:
    """Return the conviction that ``history`` calls for, or None.

    One death sends a released message straight back. A death shared with others proves nothing by itself:
    it makes a suspect, whose trial decides; without trials the bound is at least two there. Where many
    workers died at once, only a death on trial convicts.
    """
    in_doubt = (gate_closed or history.doubted) and not history.tried
    if _has_enough_strikes(history, limits) and not in_doubt:
        what = causes.describe(history.cause)
        return Verdict(Action.QUARANTINE, history.cause, f"{what}; death {history.crashes} of this message")
    if history.failures - history.old_failures >= limits.max_failures:
        reason = f"put back {history.failures} times, max_failures is {limits.max_failures}"
        return Verdict(Action.QUARANTINE, causes.FAILURES, reason)
    return None


def not_rerun(cause: str) -> Verdict:
    """Return the verdict on what was cut off and must not run again (NEW-16)."""
    reason = f"{causes.describe(cause)}; not run again, since its task says rerun=False"
    return Verdict(Action.QUARANTINE, cause, reason, not_rerun=True)


def stays_away(settlement: Settlement, cause: str, *, rerun: bool, begun: bool) -> bool:
    """Whether a run that has ended is kept from its queue, whatever its counts say (NEW-16).

    What a task itself puts back, or retries, is no rerun.
    """
    cut_off = settlement in (Settlement.STRIKE, Settlement.INTERRUPT) and cause != causes.NOT_REACHED
    return cut_off and begun and not rerun


def _has_enough_strikes(history: History, limits: Limits) -> bool:
    bound = 1 if history.probation else limits.max_crashes
    if not limits.trials and history.shared_blame and not history.probation:
        bound = max(2, bound)
    return history.strikes - history.old_strikes >= bound and (history.proven > 0 or not limits.trials)


def _stray(facts: Facts) -> Verdict | None:
    if facts.has_ended:
        return Verdict(Action.DROP, reason="an earlier start of this message already finished")
    if facts.kept is State.FAIL:
        return Verdict(Action.DROP, reason="this message was given up")
    if facts.kept is State.NDLV and (facts.release == 0 or facts.release != facts.last_release):
        return Verdict(Action.DROP, reason="this message is in quarantine")
    if facts.release and facts.release < facts.last_release:
        return Verdict(Action.DROP, reason="a newer release of this message was published")
    if facts.park and facts.park < facts.last_park:
        return Verdict(
            Action.DROP, reason="this message was parked again, or has ended, since this copy was published"
        )
    return None


def _admit(history: History, limits: Limits) -> Verdict:
    if _has_enough_strikes(history, limits):
        reason = "many workers died at once: only a death on trial convicts it"
        return Verdict(Action.RUN_ALONE, reason=reason)
    alone = limits.trials and (
        history.candidate or history.probation or history.strikes > history.old_strikes
    )
    return Verdict(Action.RUN_ALONE if alone else Action.RUN)


# --- what becomes of a message whose run ended? -------------------------------------------------------


class End(Enum):
    """How a run ended, as its own process told or as it was seen from outside.

    Attributes:
        mark: what its own process wrote into the ledger.
        outcome: the journal's word for it; empty where its own process wrote nothing.
        guilt: what becomes of its strikes when its message is acknowledged; only a run to its end clears it.
    """

    RETURNED = "returned", Ended.DONE, "success", Guilt.CLEARED
    RAISED = "raised", Ended.DONE, "failure", Guilt.CLEARED
    RETRIED = "retried", Ended.DONE, "retry", Guilt.KEPT
    IGNORED = "ignored", Ended.DONE, "ignored"
    DISCARDED = "discarded", Ended.DONE, "discarded"
    REJECTED = "rejected", Ended.DONE, "rejected"
    ROLLED_BACK = "rolled_back", Ended.ROLLED_BACK, "rejected"
    QUARANTINED = "quarantined", Ended.INTERRUPTED, "quarantined"
    WAITS = "waits", Ended.INTERRUPTED, "waits"
    NOT_REACHED = "not_reached", Ended.INTERRUPTED, "not_reached"
    OVERTAKEN = "overtaken", Ended.NOT, ""
    DIED = "died", Ended.NOT, ""
    TIMED_OUT = "timed_out", Ended.NOT, ""
    REVOKED = "revoked", Ended.NOT, ""
    SPOILT = "spoilt", Ended.NOT, ""

    def __init__(self, word: str, mark: Ended, outcome: str, guilt: Guilt = Guilt.UNPROVEN) -> None:
        self.word = word
        self.mark = mark
        self.outcome = outcome
        self.guilt = guilt


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The facts about a run that has ended.

    Attributes:
        cause: what it died of, or why it was interrupted: a word of :mod:`celery_poison.causes`.
        acks_late: its message is still the broker's.
        acks_end: its task has such an end acknowledged (``acks_on_failure``, ``acks_on_timeout``).
        asked: its process was asked to end, so that the task is not to blame.
        leaving: its worker is leaving, or it was revoked or cancelled.
        observed: nothing may become of its message but what Celery makes of it.
        kept: what it raised is to be kept (:func:`failing`).
        rerun: its task may run twice.
    """

    end: End
    cause: str = ""
    acks_late: bool = True
    acks_end: bool = True
    asked: bool = False
    leaving: bool = False
    observed: bool = False
    kept: bool = False
    rerun: bool = True


class Settlement(Enum):
    """A way to settle a run that has ended."""

    CELERY = "celery"
    LEAVE = "leave"
    STRIKE = "strike"
    INTERRUPT = "interrupt"
    ROLL_BACK = "roll_back"
    QUARANTINE = "quarantine"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class Disposition:
    """The settlement of a message whose run ended, and its record in the ledger.

    Attributes:
        holds: nobody acknowledges it or puts it back before that is on record; else it is noted beside.
        cause: for the ledger; empty where nothing is recorded.
        failure: it also counts as a failure.
    """

    settlement: Settlement
    holds: bool = False
    cause: str = ""
    failure: bool = False


def disposition(run: EndedRun) -> Disposition:
    """Decide what becomes of a message whose run ended (SAP-2, WAS-1, EMS-8)."""
    if run.end is End.OVERTAKEN:
        return Disposition(Settlement.LEAVE)
    held = run.acks_late and not run.observed
    if run.acks_late and run.end is End.RAISED and run.kept:
        return Disposition(Settlement.QUARANTINE, held, causes.FAILURE)
    if run.acks_late and run.end is End.WAITS:
        return Disposition(Settlement.PARK, held)
    if run.acks_late and run.end is End.NOT_REACHED:
        return Disposition(Settlement.INTERRUPT, held, run.cause)
    if run.acks_late and run.end is End.TIMED_OUT and not run.rerun:
        return Disposition(Settlement.STRIKE, held, run.cause, failure=True)
    return Disposition(Settlement.CELERY) if run.leaving else _while_it_stays(run, held)


def _while_it_stays(run: EndedRun, held: bool) -> Disposition:
    match run.end:
        case End.DIED | End.SPOILT if run.end is End.SPOILT or (run.asked and run.acks_late):
            return Disposition(Settlement.INTERRUPT, held, run.cause, failure=True)
        case End.DIED:
            return Disposition(Settlement.STRIKE, held, run.cause)
        case End.TIMED_OUT if run.acks_late and not run.acks_end:
            return Disposition(Settlement.STRIKE, held, run.cause, failure=True)
        case End.ROLLED_BACK if run.acks_late:
            return Disposition(Settlement.ROLL_BACK, held, run.cause or causes.REJECTED, failure=True)
        case End.QUARANTINED if run.acks_late:
            # Its own code asks for it: a worker that only observes would lose the message.
            return Disposition(Settlement.QUARANTINE, True, run.cause)
        case End.RAISED if run.acks_late and not run.acks_end:
            return Disposition(Settlement.QUARANTINE, held, causes.REJECTED)
    return Disposition(Settlement.CELERY)


class Failing(Enum):
    """The plugin's step after an exception that a task raised, beside Celery's own."""

    NOTHING = "nothing"
    KEEP = "keep"
    AT_ONCE = "at_once"


def failing(
    kinds: Sequence[str], *, keep: bool, ignore: Collection[str], convict_at_once: Collection[str]
) -> Failing:
    """Decide about an exception by the names of its class and of those that it derives from (NEW-10).

    The nearest class that is named anywhere decides; one that both name convicts.

    Args:
        kinds: nearest first.
    """
    for kind in kinds:
        if kind in convict_at_once:
            return Failing.AT_ONCE
        if kind in ignore:
            return Failing.NOTHING
    return Failing.KEEP if keep else Failing.NOTHING


# --- what becomes of a start whose worker died? -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadStart:
    """The facts about a start on record whose worker was declared dead.

    Attributes:
        ended: how its own process said that it ended.
        history: of its task id.
        child_lives: its pool process lives on without the main process, and may finish.
        nobodys_fault: the worker left, was evicted, or only fell silent.
        receiving: another message was being received in its worker.
        beside: something ran in its worker's pool.
        blow: what it met, and in which company.
        early: the death was noticed just now, and more workers may be dying.
        succeeded: SUCCESS was stored for it.
        trials: suspects are tried alone.
    """

    start: Start
    ended: Ended = Ended.NOT
    history: History = NO_HISTORY
    child_lives: bool = False
    nobodys_fault: bool = False
    receiving: bool = False
    beside: bool = False
    early: bool = False
    succeeded: bool = False
    trials: bool = True
    blow: Blow = NOTHING_ELSE


class StartEnd(Enum):
    """The plugin's step after the death of a start's worker."""

    FINISHED = "finished"
    WAIT = "wait"
    FORGET = "forget"
    ROLL_BACK = "roll_back"
    INTERRUPT = "interrupt"
    TRY_AGAIN = "try_again"
    FINISH = "finish"
    STRIKE = "strike"


@dataclass(frozen=True, slots=True)
class EndOfStart:
    """The decision about a start whose worker died.

    Attributes:
        cause: of a strike.
        shared: others may be to blame for it.
        doubt: that is added to its history.
        spoilt: no outsider has a share in that.
    """

    end: StartEnd
    cause: str = ""
    shared: bool = False
    doubt: int = 0
    spoilt: bool = False


def end_of(dead: DeadStart) -> EndOfStart:
    """Decide what becomes of a start whose worker died (EMS-4, SAP-2)."""
    start, ended = dead.start, dead.ended
    on_trial = start.alone > 0 and start.phase == Phase.RUNNING
    if ended is Ended.DONE:
        return EndOfStart(StartEnd.FINISHED)
    if dead.child_lives or (dead.early and not dead.nobodys_fault and _may_convict(dead)):
        return EndOfStart(StartEnd.WAIT)
    if dead.nobodys_fault or (dead.receiving and on_trial):
        return EndOfStart(StartEnd.INTERRUPT)
    if start.phase == Phase.CLAIMED:
        return EndOfStart(StartEnd.FORGET)
    if ended is not Ended.NOT:
        return EndOfStart(StartEnd.ROLL_BACK if ended is Ended.ROLLED_BACK else StartEnd.INTERRUPT)
    if dead.succeeded:
        return EndOfStart(StartEnd.FINISH)
    return _end_of_receiving(dead) if start.phase == Phase.ADMITTING else _end_of_running(dead)


def _may_convict(dead: DeadStart) -> bool:
    """Whether the death of its worker may prove it guilty."""
    start = dead.start
    if start.phase != Phase.RUNNING or (dead.receiving and start.alone):
        return False
    if _is_doubted(dead):
        return proves(dead.history, dead.blow)
    return start.alone == ALONE or (not dead.trials and start.deliveries > 1)


def _end_of_receiving(dead: DeadStart) -> EndOfStart:
    """Receiving takes milliseconds: once that may be chance, above all for what has run before."""
    history = dead.history
    again = history.cause == causes.RECEIVE
    if history.crashes and not again and not history.spoilt:
        return EndOfStart(StartEnd.TRY_AGAIN, spoilt=True)
    return EndOfStart(StartEnd.STRIKE, causes.RECEIVE, shared=dead.beside and not again)


def _end_of_running(dead: DeadStart) -> EndOfStart:
    start = dead.start
    if _is_doubted(dead) and not proves(dead.history, dead.blow):
        return EndOfStart(StartEnd.TRY_AGAIN, doubt=dead.blow.share, spoilt=not dead.blow.outsiders)
    return EndOfStart(StartEnd.STRIKE, causes.WORKER_LOST, shared=not start.alone)


def _is_doubted(dead: DeadStart) -> bool:
    """Whether the end of its worker may have been its doing, or not: its own process was another."""
    return dead.start.is_in_cell or (dead.start.alone > 0 and (dead.history.spoilt + dead.history.doubt) > 0)
