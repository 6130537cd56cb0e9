"""Every combination of facts, against the rules in plain English (docs/verdict.md)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from celery_poison import causes
from celery_poison.states import State
from celery_poison.verdict import Action, Ended, Facts, History, Limits, convict, judge

HISTORIES = [
    History(strikes=strikes, crashes=strikes, failures=failures, candidate=candidate, probation=probation,
            shared_blame=shared, cause=cause, proven=proven, spoilt=spoilt,
            tried=tried, doubted=doubted)
    for strikes, failures, candidate, probation, shared, cause, proven, spoilt, tried, doubted
    in itertools.product(
        range(4), range(4), (False, True), (False, True), (False, True), ("signal:9", "worker_lost"),
        range(3), (False, True), range(2), (False, True)
    )
    if tried <= proven <= strikes
]  # fmt: skip
LIMITS = [
    Limits(crashes, failures, trials=trials)
    for crashes in (1, 2, 3)
    for failures in (1, 2, 3)
    for trials in (True, False)
]
FACTS = [
    Facts(foreign_start=foreign, ended=ended, kept=kept, release=release, last_release=last,
          park=park, last_park=last_park, finished=finished, payload_bytes=size, gate_closed=closed)
    for foreign, ended, kept, release, last, park, last_park, finished, size, closed in itertools.product(
        (False, True), Ended, (None, State.NDLV, State.FAIL), range(3), range(3), range(3), range(3),
        (False, True), (0, 11), (False, True)
    )
]  # fmt: skip


def _bound(history: History, limits: Limits) -> int:
    if history.probation:
        return 1
    if history.shared_blame and not limits.trials:
        return max(2, limits.max_crashes)
    return limits.max_crashes


def _has_enough(history: History, limits: Limits) -> bool:
    proven = history.proven > 0 or not limits.trials
    return proven and history.strikes >= _bound(history, limits)


def _by_strikes(history: History, limits: Limits, closed: bool) -> bool:
    needs_trial = closed or history.doubted
    return _has_enough(history, limits) and (history.tried > 0 or not needs_trial)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_SAP_3_a_message_is_convicted_exactly_when_its_strikes_or_failures_reach_their_bound(
    limits: Limits, closed: bool
) -> None:
    for history in HISTORIES:
        guilty = _by_strikes(history, limits, closed) or history.failures >= limits.max_failures
        verdict = convict(history, limits, gate_closed=closed)
        assert (verdict is not None) == guilty, history
        if verdict is not None:
            assert verdict.action is Action.QUARANTINE
            by_strikes = _by_strikes(history, limits, closed)
            assert verdict.cause == (history.cause if by_strikes else causes.FAILURES)
            assert verdict.reason


def test_NEW_1_deaths_that_were_shared_never_convict_where_there_are_trials() -> None:
    for deaths in range(1, 100):
        suspect = History(strikes=deaths, crashes=deaths, shared_blame=True, candidate=True)
        assert convict(suspect, Limits(max_crashes=1)) is None
        assert judge(Facts(history=suspect), Limits(max_crashes=1)).action is Action.RUN_ALONE


def test_SAP_3_without_trials_one_shared_death_does_not_convict_and_two_do() -> None:
    for deaths, guilty in ((1, False), (2, True)):
        history = History(strikes=deaths, crashes=deaths, shared_blame=True, candidate=True)
        assert (convict(history, Limits(max_crashes=1, trials=False)) is not None) == guilty


def test_SAP_2_without_trials_a_candidate_runs_like_every_other_message() -> None:
    limits = Limits(max_crashes=9, max_failures=9, trials=False)
    for history in HISTORIES:
        verdict = judge(Facts(history=history), limits)
        alone = history.doubted and not history.tried and _has_enough(history, limits)
        assert verdict.action in ((Action.RUN_ALONE,) if alone else (Action.RUN, Action.QUARANTINE))


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_NEW_1_with_the_fleet_gate_closed_who_would_be_convicted_by_deaths_is_tried_first(
    limits: Limits,
) -> None:
    for history in HISTORIES:
        facts = Facts(history=history)
        open_, closed = judge(facts, limits), judge(replace(facts, gate_closed=True), limits)
        if history.failures >= limits.max_failures:
            assert open_.action is closed.action is Action.QUARANTINE, "failures are no deaths"
        elif history.tried or not _has_enough(history, limits):
            assert closed == open_, history
        else:
            assert closed.action is Action.RUN_ALONE and closed.reason, history
            assert open_.action is (Action.RUN_ALONE if history.doubted else Action.QUARANTINE)


def test_NEW_1_a_doubt_outlives_the_closed_gate_and_a_death_on_trial_ends_it() -> None:
    doubted = History(strikes=9, crashes=9, candidate=True, shared_blame=True, doubted=True)
    for limits in LIMITS:
        assert judge(Facts(history=doubted), limits).action is Action.RUN_ALONE
        guilty = replace(doubted, proven=1, tried=1)
        for closed in (False, True):
            assert judge(Facts(history=guilty, gate_closed=closed), limits).action is Action.QUARANTINE


def test_NEW_6_one_death_on_probation_convicts_whatever_the_limit() -> None:
    released = History(strikes=1, crashes=5, probation=True, proven=1)
    for limits in LIMITS:
        assert convict(released, limits) is not None
        assert convict(replace(released, tried=1), limits, gate_closed=True) is not None


def test_TP1_8_a_message_whose_earlier_start_finished_never_runs_again() -> None:
    for facts in FACTS:
        if facts.foreign_start and facts.ended is Ended.DONE:
            assert judge(facts, Limits()).action is Action.DROP


def test_SAP_7_a_copy_of_a_given_up_message_never_runs() -> None:
    for facts in FACTS:
        if facts.kept is State.FAIL:
            assert judge(facts, Limits()).action is Action.DROP


def test_SAP_7_a_copy_of_a_quarantined_message_runs_only_as_its_newest_release() -> None:
    for facts in FACTS:
        if facts.kept is State.NDLV and facts.release != facts.last_release:
            assert judge(facts, Limits()).action is Action.DROP


def test_SAP_7_a_copy_older_than_the_newest_release_never_runs() -> None:
    for facts in FACTS:
        if 0 < facts.release < facts.last_release:
            assert judge(facts, Limits()).action is Action.DROP


def test_TP1_8_nothing_runs_or_is_quarantined_beside_an_earlier_start_that_has_not_ended() -> None:
    for facts in FACTS:
        if facts.foreign_start and facts.ended is not Ended.DONE:
            assert judge(facts, Limits()).action in (Action.WAIT, Action.DROP)


def test_TP1_8_a_copy_of_an_earlier_parking_never_runs_and_one_of_the_newest_is_no_worse_off() -> None:
    for facts in FACTS:
        if 0 < facts.park < facts.last_park:
            assert judge(facts, Limits()).action is Action.DROP
        else:
            unparked = replace(facts, park=0, last_park=0)
            assert judge(facts, Limits()) == judge(unparked, Limits())


def test_TP1_8_a_message_that_finished_after_it_was_parked_never_runs_again() -> None:
    for facts in FACTS:
        if facts.finished:
            assert judge(facts, Limits()).action is Action.DROP


def test_TP1_8_a_published_copy_of_which_the_ledger_knows_nothing_is_run_rather_than_lost() -> None:
    assert judge(Facts(park=7), Limits()).action is Action.RUN


def test_SAP_6_a_payload_above_its_limit_is_quarantined_and_one_at_it_is_not() -> None:
    assert judge(Facts(payload_bytes=11), Limits(max_payload_bytes=10)).cause == causes.PAYLOAD
    assert judge(Facts(payload_bytes=10), Limits(max_payload_bytes=10)).action is Action.RUN


def test_SAP_2_candidates_and_released_messages_run_alone_and_all_others_do_not() -> None:
    for history in HISTORIES:
        verdict = judge(Facts(history=history), Limits(max_crashes=9, max_failures=9))
        if verdict.action is Action.QUARANTINE:
            assert history.probation and history.proven
            assert history.tried or not history.doubted
        else:
            alone = history.candidate or history.probation
            assert verdict.action is (Action.RUN_ALONE if alone else Action.RUN)


def test_NEW_3_what_is_blocked_does_not_run_unless_a_person_released_it() -> None:
    for facts, history in itertools.product(FACTS[::11], HISTORIES[::13]):
        free = judge(replace(facts, history=history), Limits(max_payload_bytes=10))
        verdict = judge(replace(facts, history=history, blocked="rule"), Limits(max_payload_bytes=10))
        would_run = free.action in (Action.RUN, Action.RUN_ALONE)
        if would_run and not facts.last_release:
            assert (verdict.action, verdict.cause, verdict.reason) == (
                Action.QUARANTINE,
                causes.BLOCKED,
                "rule",
            )
        else:
            assert verdict == free, "what has a reason of its own keeps it"


def test_every_decision_that_keeps_a_message_from_running_gives_a_reason() -> None:
    for facts, history in itertools.product(FACTS[::11], HISTORIES[::13]):
        verdict = judge(replace(facts, history=history), Limits(max_payload_bytes=10))
        assert verdict.reason or verdict.action in (Action.RUN, Action.RUN_ALONE)
