"""The rules of docs/verdict.md, carried out as they are written there: an oracle for the code.

Order, actions, bounds and counts are read from the page. What a sentence of it *means* stands here, under the
very words of the page: who rewords a rule there has to say here what it means now.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from celery_poison.decide import Action, DeadStart, End, EndedRun, Facts, Failing, Settlement, StartEnd
from celery_poison.model import ALONE, IN_CELL, Ended, History, Limits, Phase
from celery_poison.states import State
from tests.docs.pages import rows, section, text, words

_PAGE = text("verdict.md")
_JUDGE, _CONVICT = "May it be let in? (`judge`)", "Is it guilty? (`convict`)"

# --- is it guilty? ------------------------------------------------------------------------------------

_WHO: dict[str, Callable[[History], bool]] = {
    "is on probation: it was released from quarantine and has not ended alive since": lambda h: h.probation,
    "any other": lambda h: True,
}
_PROOF = {"at least one death *alone*": 1}
_WITHOUT_TRIALS = re.compile(
    r'With `poison_trial="off"` there are no trials and row (\d+) does not apply.*?'
    r"bound after a shared death is at least (\w+)",
    re.DOTALL,
)


class Bound(NamedTuple):
    applies: Callable[[History], bool]
    strikes: Callable[[Limits], int]
    proof: int  #: deaths alone


def _strikes(cell: str) -> Callable[[Limits], int]:
    if cell == "`max_crashes`":
        return lambda limits: limits.max_crashes
    return lambda limits: int(cell)


@cache
def bounds() -> list[Bound]:
    # The second table of this section is about trials.
    found = [row for row in rows(section(_PAGE, _CONVICT)) if len(row) == 3]
    assert [who for who, _, _ in found] == list(_WHO)
    return [Bound(_WHO[who], _strikes(strikes), _PROOF[proof]) for who, strikes, proof in found]


@cache
def _without_trials() -> tuple[str, int]:
    """Return the row that does not apply without trials, and the least bound after a shared death."""
    match = _WITHOUT_TRIALS.search(_PAGE)
    assert match is not None
    return match[1], {"two": 2}[match[2]]


def is_proven_guilty(history: History, limits: Limits) -> bool:
    bound = next(bound for bound in bounds() if bound.applies(history))
    needed, proof = bound.strikes(limits), bound.proof
    if not limits.trials:
        proof = 0
        if history.shared_blame and not history.probation:
            needed = max(needed, _without_trials()[1])
    return history.strikes >= needed and history.proven >= proof


def has_failed_too_often(history: History, limits: Limits) -> bool:
    return history.failures >= limits.max_failures


def is_in_doubt(facts: Facts) -> bool:
    """As the section about many deaths at once says."""
    return (facts.gate_closed or facts.history.doubted) and not facts.history.tried


# --- may it be let in? --------------------------------------------------------------------------------


def _is_too_large(facts: Facts, limits: Limits) -> bool:
    return limits.max_payload_bytes is not None and facts.payload_bytes > limits.max_payload_bytes


_KNOWN: dict[str, Callable[[Facts, Limits], bool]] = {
    "an earlier start of this message has finished: it is still on record, or the message was parked meanwhile":  # noqa: E501
        lambda f, _: f.finished or (f.foreign_start and f.ended is Ended.DONE),
    "a person gave this message up":
        lambda f, _: f.kept is State.FAIL,
    "it is in quarantine, and this copy is not the one that its newest release published":
        lambda f, _: f.kept is State.NDLV and not (f.release and f.release == f.last_release),
    "this copy was published by an earlier release than the newest":
        lambda f, _: 0 < f.release < f.last_release,
    "this copy was published by an earlier parking than the newest, or the message has ended since":
        lambda f, _: 0 < f.park < f.last_park,
    "an earlier start of this message is on record and has not finished":
        lambda f, _: f.foreign_start and f.ended is not Ended.DONE,
    "its body, as received, has more than `max_payload_bytes`": _is_too_large,
    "it is proven guilty, its strikes have reached the bound, see below, and [many deaths at once](#when-many-workers-die-at-once) leave no doubt":  # noqa: E501
        lambda f, limits: is_proven_guilty(f.history, limits) and not is_in_doubt(f),
    "its failures have reached `max_failures`":
        lambda f, limits: has_failed_too_often(f.history, limits),
    "a run of this very message has begun and was cut off, and its task says `rerun=False`":
        lambda f, limits: bool(f.cut_off) and not limits.rerun,
    "it is blocked, or a hold catches it, and this task id was never released from quarantine":
        lambda f, _: bool(f.blocked) and not f.last_release,
    "it would be convicted by row 8 if there were no doubt":
        lambda f, limits: is_proven_guilty(f.history, limits),
    "it is a candidate, on probation, or has strikes":
        lambda f, _: f.history.candidate or f.history.probation or f.history.strikes > f.history.old_strikes,
    "anything else": lambda f, _: True,
}  # fmt: skip


class Rule(NamedTuple):
    number: str
    applies: Callable[[Facts, Limits], bool]
    action: Action


@cache
def rules(trials: bool = True) -> list[Rule]:
    """Return the rows of the table; those which do not apply without trials are left out there."""
    table = rows(section(_PAGE, _JUDGE))
    assert sorted(known for _, known, _, _ in table) == sorted(_KNOWN), "every row has its meaning here"
    found = [Rule(number, _KNOWN[known], Action(words(action)[0])) for number, known, action, _ in table]
    skipped = "" if trials else _without_trials()[0]
    return [rule for rule in found if rule.number != skipped]


def action_for(facts: Facts, limits: Limits) -> Action:
    """Return what the first row says that applies."""
    return next(rule.action for rule in rules(limits.trials) if rule.applies(facts, limits))


# --- what becomes of a message whose run ended? -------------------------------------------------------

_ENDED = "A run has ended (`disposition`)"
_AND: dict[str, Callable[[EndedRun], bool]] = {
    "": lambda r: True,
    "its worker is leaving, or it was revoked or cancelled": lambda r: r.leaving,
    "late, and its task says `rerun=False`": lambda r: r.acks_late and not r.rerun,
    "late, and its process was asked to end": lambda r: r.acks_late and r.asked,
    "late, and its task does not acknowledge time limits": lambda r: r.acks_late and not r.acks_end,
    "late": lambda r: r.acks_late,
    "late, and its failure is to be kept": lambda r: r.acks_late and r.kept,
    "late, and its task does not acknowledge failures": lambda r: r.acks_late and not r.acks_end,
}


@cache
def _settlements() -> list[tuple[str, Callable[[EndedRun], bool], Settlement, str]]:
    table = [row for row in rows(section(_PAGE, _ENDED)) if len(row) == 5 and row[0].isdecimal()]
    assert {also for _, _, also, _, _ in table} == set(_AND)
    return [
        ((words(how) or ["any"])[0], _AND[also], Settlement(words(settlement)[0]), counts)
        for _, how, also, settlement, counts in table
    ]


def disposition_for(run: EndedRun) -> tuple[Settlement, str, bool]:
    """Return what the first row says that applies: what is done, what counts, and whether it holds."""
    settlement, counts = next(
        (settlement, counts)
        for how, applies, settlement, counts in _settlements()
        if how in ("any", run.end.word) and applies(run)
    )
    nothing = settlement in (Settlement.CELERY, Settlement.LEAVE)
    asks_for_it = run.end is End.QUARANTINED
    return settlement, counts, not nothing and run.acks_late and (not run.observed or asks_for_it)


# --- is what a task raised to be kept? ----------------------------------------------------------------

_RAISED = "An exception was raised (`failing`)"
_NEAREST: dict[str, Callable[[bool, bool, bool], bool]] = {
    "is in `convict_at_once`": lambda keep, ignored, at_once: at_once,
    "is in `ignore`": lambda keep, ignored, at_once: ignored,
    "does not exist, and `keep_failures` is set": lambda keep, ignored, at_once: keep,
    "does not exist": lambda keep, ignored, at_once: True,
}


def failing_for(
    kinds: Sequence[str], keep: bool, ignore: Collection[str], at_once: Collection[str]
) -> Failing:
    """Return what the first row says that applies."""
    nearest = next((kind for kind in kinds if kind in ignore or kind in at_once), None)
    table = [row for row in rows(section(_PAGE, _RAISED)) if len(row) == 4 and row[0].isdecimal()]
    assert [which for _, which, _, _ in table] == list(_NEAREST)
    facts = keep, nearest in ignore, nearest in at_once
    return next(Failing(words(what)[0]) for _, which, what, _ in table if _NEAREST[which](*facts))


# --- what becomes of a start whose worker died? -------------------------------------------------------

_DEAD = "A worker has died (`end_of`)"


def _received(d: DeadStart) -> bool:
    return d.start.phase == Phase.ADMITTING


def _on_trial(d: DeadStart) -> bool:
    return d.start.phase == Phase.RUNNING and d.start.alone > 0


def _is_doubted(d: DeadStart) -> bool:
    return d.start.alone >= IN_CELL or (d.start.alone > 0 and (d.history.spoilt > 0 or d.history.doubt > 0))


_DOUBTS = re.compile(
    r"\*\*A doubt that n share weighs 1/n, and (\w+) whole ones are proof\.\*\*.*?"
    r"outsiders: they have one share for each percent of the chance",
    re.DOTALL,
)


def weight(d: DeadStart) -> int:
    """What one doubt weighs, in thousandths of a whole one, as the section about doubts says."""
    return math.floor(1000 / (d.blow.together + shares_outside(d)))


def shares_outside(d: DeadStart) -> int:
    ten_minutes, hour = (100 * d.blow.ran_s * max(0, deaths - d.blow.starts) for deaths in d.blow.deaths)
    return math.floor(max(ten_minutes / (600 * d.blow.workers), hour / (3600 * d.blow.workers)))


@cache
def whole_ones() -> int:
    match = _DOUBTS.search(_PAGE)
    assert match is not None
    return {"three": 3}[match[1]]


def _is_light(d: DeadStart) -> bool:
    return d.history.doubt + weight(d) < 1000 * whole_ones()


def _may_convict(d: DeadStart) -> bool:
    if d.start.phase != Phase.RUNNING:
        return False
    if _is_doubted(d):
        return not _is_light(d)
    return d.start.alone == ALONE or (not d.trials and d.start.deliveries > 1)


_KNOWN_OF_START: dict[str, Callable[[DeadStart], bool]] = {
    "its end is on record": lambda d: d.ended is Ended.DONE,
    "its pool process lives on without its main process": lambda d: d.child_lives,
    "its worker was leaving, was evicted, or only fell silent": lambda d: d.nobodys_fault,
    "it is on trial, and a message was being received in its worker":
        lambda d: d.receiving and _on_trial(d),
    "its death may convict it, and was noticed less than a second ago":
        lambda d: d.early and _may_convict(d),
    "it was only claimed": lambda d: d.start.phase == Phase.CLAIMED,
    "its task put it back": lambda d: d.ended is Ended.ROLLED_BACK,
    "its task asked for quarantine, or its failure was to be kept": lambda d: d.ended is Ended.INTERRUPTED,
    "SUCCESS was stored for it": lambda d: d.succeeded,
    "it was being received, and has died while it ran; no worker has ended beside a trial of it":
        lambda d: _received(d) and d.history.crashes > 0 and d.history.cause != "receive"
        and not d.history.spoilt,
    "it was being received, as when it died last":
        lambda d: _received(d) and d.history.cause == "receive",
    "it was being received, and something ran in its worker's pool":
        lambda d: _received(d) and d.beside,
    "it was being received": _received,
    "it was in a cell, or ran alone in its worker after a doubt; with this one its [doubts](#doubts) weigh less than 3":  # noqa: E501
        lambda d: _is_doubted(d) and _is_light(d),
    "it was in a cell, or ran alone in its worker": lambda d: d.start.alone > 0,
    "anything else": lambda d: True,
}  # fmt: skip


@cache
def _ends_of_starts() -> list[tuple[Callable[[DeadStart], bool], StartEnd, str]]:
    table = rows(section(_PAGE, _DEAD))
    assert [known for _, known, _, _ in table] == list(_KNOWN_OF_START)
    return [(_KNOWN_OF_START[known], StartEnd(words(done)[0]), blame) for _, known, done, blame in table]


def end_for(dead: DeadStart) -> tuple[StartEnd, str]:
    """Return what the first row says that applies, and whose the blame is."""
    return next((done, blame) for applies, done, blame in _ends_of_starts() if applies(dead))


# --- what counts --------------------------------------------------------------------------------------


class Count(NamedTuple):
    """One row of the table: what it adds, or puts back to 0."""

    crashes: str
    strikes: str
    failures: str

    def add(self, history: History) -> History:
        def changed(now: int, cell: str) -> int:
            return {"": now, "+1": now + 1, "back to 0": 0}[cell]

        return replace(
            history,
            crashes=changed(history.crashes, self.crashes),
            strikes=changed(history.strikes, self.strikes),
            failures=changed(history.failures, self.failures),
        )


@cache
def counts() -> dict[str, Count]:
    return {row[0]: Count(*row[1:]) for row in rows(section(_PAGE, "What counts"))}
