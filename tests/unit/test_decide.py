"""Every combination of facts and every short history, against the rules as docs/verdict.md tells them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from celery_poison import causes
from celery_poison.decide import (
    Action,
    DeadStart,
    End,
    EndedRun,
    EndOfStart,
    Facts,
    Settlement,
    StartEnd,
    convict,
    disposition,
    end_of,
    judge,
    stays_away,
)
from celery_poison.model import Ended, History, Limits, Phase, Start
from celery_poison.rules.doubts import PROOF, SHARED_DOUBTS, WHOLE, Blow, needs_idle_worker
from celery_poison.states import State
from tests.docs import verdict_table as table

HISTORIES = [
    History(strikes=strikes, crashes=strikes, failures=failures, candidate=candidate, probation=probation,
            shared_blame=shared, cause=cause, proven=proven, spoilt=spoilt, tried=tried, doubted=doubted)
    for strikes, failures, candidate, probation, shared, cause, proven, spoilt, tried, doubted
    in itertools.product(
        range(4), range(4), (False, True), (False, True), (False, True), ("signal:9", "worker_lost"),
        range(3), range(2), range(2), (False, True)
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
          park=park, last_park=last_park, finished=finished, payload_bytes=size)
    for foreign, ended, kept, release, last, park, last_park, finished, size in itertools.product(
        (False, True), Ended, (None, State.NDLV, State.FAIL), range(3), range(3), range(3), range(3),
        (False, True), (0, 11)
    )
]  # fmt: skip


#: What can happen to a message: a row of "What counts", and whether nothing else can have been to blame.
EVENTS = {
    "its pool process died: signal, exit status, out of memory": True,
    "a hard time limit that puts the message back": True,
    "its whole worker died while it ran, or while it was received": False,
    "its worker ended while it was in a cell": None,
    "`self.rollback()`, `Reject(requeue=True)`": None,
    "it ended alive": None,
    "it asked for a retry": None,
    "it was released": None,
}
#: So many events one after the other: more than any of LIMITS needs, in any order.
LONGEST = 7


def _after(event: str, before: History) -> History:
    counted = table.counts()[event].add(before)
    match EVENTS[event], event:
        case bool(alone), _:
            return replace(counted, candidate=True, shared_blame=not alone, cause="signal:9",
                           proven=before.proven + alone)  # fmt: skip
        case _, "it ended alive":
            return replace(
                counted, candidate=False, probation=False, spoilt=0, doubt=0, proven=0, tried=0, doubted=False
            )
        case _, "it was released":
            return replace(counted, candidate=True, probation=True, proven=0)
        case _, "its worker ended while it was in a cell":
            return replace(counted, spoilt=1, doubt=WHOLE)
    return counted


def _every_history(longest: int = LONGEST) -> set[History]:
    """Everything that any sequence of up to so many events leads to."""
    found = newest = {History()}
    for _ in range(longest):
        newest = {_after(event, history) for history in newest for event in EVENTS} - found
        found = found | newest
    return found


def test_NEW_1_every_history_up_to_a_bound_gets_the_verdict_of_the_table_in_the_docs() -> None:
    histories = _every_history()
    assert len(histories) > 1000
    for history, limits in itertools.product(histories, LIMITS):
        _is_as_in_the_docs(Facts(history=history), limits)


def test_SAP_3_every_combination_of_counts_gets_the_verdict_of_the_table_in_the_docs() -> None:
    for history, limits, closed in itertools.product(HISTORIES, LIMITS, (False, True)):
        _is_as_in_the_docs(Facts(history=history, gate_closed=closed), limits)


def test_every_combination_of_facts_gets_the_verdict_of_the_table_in_the_docs() -> None:
    each_row = [History(), History(strikes=2, proven=1), History(failures=5), History(candidate=True)]
    limits = Limits(max_payload_bytes=10)
    for facts, history, blocked in itertools.product(FACTS, each_row, ("", "rule")):
        _is_as_in_the_docs(replace(facts, history=history, blocked=blocked), limits)
        if history.strikes:
            _is_as_in_the_docs(replace(facts, history=history, blocked=blocked, gate_closed=True), limits)


def test_NEW_16_what_was_cut_off_gets_the_verdict_of_the_table_in_the_docs() -> None:
    each_row = [History(), History(strikes=2, proven=1), History(failures=5), History(candidate=True)]
    for facts, history, blocked, rerun in itertools.product(
        FACTS[::11], each_row, ("", "rule"), (True, False)
    ):
        cut = replace(facts, history=history, blocked=blocked, cut_off="frozen")
        _is_as_in_the_docs(cut, Limits(max_payload_bytes=10, rerun=rerun))


def _is_as_in_the_docs(facts: Facts, limits: Limits) -> None:
    assert judge(facts, limits).action is table.action_for(facts, limits), (facts, limits)
    guilty = table.is_proven_guilty(facts.history, limits) and not table.is_in_doubt(facts)
    verdict = convict(facts.history, limits, gate_closed=facts.gate_closed)
    if guilty or table.has_failed_too_often(facts.history, limits):
        assert verdict is not None and verdict.reason
        assert verdict.action is Action.QUARANTINE
        assert verdict.cause == (facts.history.cause if guilty else causes.FAILURES)
    else:
        assert verdict is None, (facts, limits)


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
    for history in HISTORIES:
        verdict = judge(Facts(history=history), Limits(max_crashes=9, max_failures=9, trials=False))
        assert verdict.action in (Action.RUN, Action.QUARANTINE) or (history.doubted and verdict.reason)


def test_NEW_1_with_the_fleet_gate_closed_who_would_be_convicted_by_deaths_is_tried_first() -> None:
    tried_first = 0
    for history, limits in itertools.product(HISTORIES, LIMITS):
        open_, closed = (judge(Facts(history=history, gate_closed=gate), limits) for gate in (False, True))
        if history.failures >= limits.max_failures:
            assert open_.action is closed.action is Action.QUARANTINE, "failures are no deaths"
        elif history.tried or open_.action is not Action.QUARANTINE:
            assert closed == open_, history
        else:
            assert closed.action is Action.RUN_ALONE and closed.reason, history
            tried_first += 1
    assert tried_first


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


def test_NEW_6_counts_that_a_release_has_kept_decide_nothing() -> None:
    for history, limits in itertools.product(HISTORIES, LIMITS):
        kept = replace(
            history, strikes=history.strikes + 7, failures=history.failures + 9, old_strikes=7, old_failures=9
        )
        found, told = (judge(Facts(history=each), limits) for each in (kept, history))
        assert (found.action, found.cause) == (told.action, told.cause), kept


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
        else:
            alone = history.candidate or history.probation or history.strikes
            assert verdict.action is (Action.RUN_ALONE if alone else Action.RUN)


def test_NEW_3_what_is_blocked_does_not_run_unless_a_person_released_it() -> None:
    for facts, history in itertools.product(FACTS[::7], HISTORIES[::13]):
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
    for facts, history in itertools.product(FACTS[::7], HISTORIES[::13]):
        verdict = judge(replace(facts, history=history), Limits(max_payload_bytes=10))
        assert verdict.reason or verdict.action in (Action.RUN, Action.RUN_ALONE)


RUNS = [
    EndedRun(end, causes.NOT_REACHED if end is End.NOT_REACHED else "signal:9", *flags)
    for end, *flags in itertools.product(End, *[(False, True)] * 7)
]  # fmt: skip


def test_every_end_of_a_run_gets_the_disposition_of_the_table_in_the_docs() -> None:
    for run in RUNS:
        what = disposition(run)
        settlement, counts, holds = table.disposition_for(run)
        assert (what.settlement, what.holds) == (settlement, holds), run
        assert what.failure == counts.endswith("a failure"), run
        assert (settlement is Settlement.STRIKE) == counts.startswith("a strike"), run


def test_whatever_is_recorded_has_a_cause() -> None:
    for run in RUNS:
        what = disposition(run)
        recorded = what.settlement not in (Settlement.CELERY, Settlement.LEAVE, Settlement.PARK)
        assert bool(what.cause) == recorded, run


def test_SAP_2_what_its_worker_or_a_person_ended_gets_no_strike() -> None:
    for run in RUNS:
        if run.leaving or run.end in (End.REVOKED, End.SPOILT) or (run.asked and run.acks_late):
            assert disposition(run).settlement is not Settlement.STRIKE or run.end is End.TIMED_OUT, run


def test_NEW_8_whoever_only_observes_holds_no_message_but_those_that_ask_for_quarantine() -> None:
    held = {run.end for run in RUNS if run.observed and disposition(run).holds}
    assert held == {End.QUARANTINED}


def test_EMS_8_what_has_another_owner_is_left_to_it_whatever_else_is_known() -> None:
    assert {disposition(run).settlement for run in RUNS if run.end is End.OVERTAKEN} == {Settlement.LEAVE}


def test_NEW_16_what_began_and_was_cut_off_never_runs_again_whatever_else_is_known() -> None:
    never = Limits(max_crashes=9, max_failures=9, rerun=False)
    for facts, history, closed in itertools.product(FACTS[::11], HISTORIES[::101], (False, True)):
        cut = replace(facts, history=history, cut_off="shutdown", gate_closed=closed)
        for trials in (False, True):
            verdict = judge(cut, replace(never, trials=trials))
            assert verdict.action not in (Action.RUN, Action.RUN_ALONE), cut
            assert judge(cut, Limits(9, 9, trials=trials)) == judge(
                replace(cut, cut_off=""), Limits(9, 9, trials=trials)
            )
            assert not verdict.not_rerun or verdict.cause == "shutdown"


def test_NEW_16_what_has_not_begun_goes_on_as_if_it_might_run_twice() -> None:
    for facts, history in itertools.product(FACTS[::11], HISTORIES[::101]):
        untouched = replace(facts, history=history)
        assert judge(untouched, Limits(rerun=False)) == judge(untouched, Limits())


def test_NEW_16_every_end_of_a_run_that_would_put_it_back_keeps_it_but_what_its_task_asked_for() -> None:
    back = (Settlement.STRIKE, Settlement.INTERRUPT, Settlement.ROLL_BACK)
    for run in (run for run in RUNS if not run.rerun):
        what = disposition(run)
        kept = stays_away(what.settlement, what.cause, rerun=False, begun=True)
        goes_back = what.settlement in back
        by_itself = run.end in (End.ROLLED_BACK, End.NOT_REACHED)
        assert kept == (goes_back and not by_itself), run
        assert not stays_away(what.settlement, what.cause, rerun=True, begun=True)
        assert not stays_away(what.settlement, what.cause, rerun=False, begun=False)


def test_NEW_16_a_hard_time_limit_is_no_end_that_celery_acknowledges() -> None:
    for run in RUNS:
        if run.end is End.TIMED_OUT and run.acks_late and not run.rerun:
            assert disposition(run).settlement is Settlement.STRIKE, run


def _dead_starts() -> Iterator[DeadStart]:
    histories = [
        History(),
        History(crashes=1, cause="receive"),
        History(crashes=1, cause="signal:9"),
        History(crashes=1, cause="signal:9", spoilt=1),
        History(crashes=1, cause="signal:9", spoilt=4, doubt=(PROOF - 1) * WHOLE),
    ]
    flags = itertools.product(*[(False, True)] * 7)
    sharers = [(1, 0.0, (1, 1), 1), (2, 60.0, (3, 9), 2)]
    for phase, alone, ended, history, rest, (together, ran_s, deaths, workers) in itertools.product(
        Phase, range(4), Ended, histories, list(flags), sharers
    ):
        if phase is Phase.WENT_BACK and ended is not Ended.DONE:
            continue  # it is on record with its end
        start = Start(phase, "b.1", "w@n/b", 1, 0, 2, alone, "i", "t", "q", 2, 5, 0, 1)
        blow = Blow(together, ran_s, 2, deaths, workers)
        yield DeadStart(start, ended, history, *rest, blow=blow)


def test_SAP_2_every_start_of_a_dead_worker_ends_as_the_table_in_the_docs_says() -> None:
    for dead in _dead_starts():
        made = end_of(dead)
        done, blame = table.end_for(dead)
        assert made.end is done, dead
        if done is StartEnd.STRIKE:
            assert made.shared == (blame == "shared"), dead
            received = dead.start.phase is Phase.ADMITTING
            assert made.cause == (causes.RECEIVE if received else causes.WORKER_LOST)
        else:
            assert not made.cause and not made.shared and not blame, dead
        doubted = done is StartEnd.TRY_AGAIN and dead.start.phase is Phase.RUNNING
        counts = done is StartEnd.TRY_AGAIN and not (doubted and table.shares_outside(dead))
        assert made.spoilt == counts, dead
        assert made.doubt == (table.weight(dead) if doubted else 0), dead


def test_EMS_4_what_had_ended_or_never_began_gets_no_strike() -> None:
    for dead in _dead_starts():
        if dead.ended is not Ended.NOT or dead.succeeded or dead.start.phase is Phase.CLAIMED:
            assert end_of(dead).end is not StartEnd.STRIKE, dead


IN_A_CELL = Start("R", "b.1", "w@n/b", 1, 1, 2, 2, "i", "t", "q", 2, 5, 0, 1)


def test_NEW_1_a_doubt_weighs_what_the_docs_say_and_never_more_than_a_whole_one() -> None:
    for starts, together, ran_s, deaths, workers in itertools.product(
        range(2, 9), (1, 2, 3, 50, 500), (0.0, 0.1, 1.0, 60.0, 3600.0), (1, 2, 7, 60, 1000), (1, 2, 50)
    ):
        for lately in {1, deaths // 6, deaths}:
            blow = Blow(together, ran_s, starts, (lately, deaths), workers)
            dead = DeadStart(IN_A_CELL, blow=blow)
            assert blow.outsiders == table.shares_outside(dead)
            assert blow.share == table.weight(dead) <= WHOLE // together, dead


def _in_doubt(history: History, end: EndOfStart) -> History:
    return replace(history, spoilt=history.spoilt + end.spoilt, doubt=history.doubt + end.doubt)


def _deaths_until_convicted(together: int, deaths: int, ran_s: float, workers: int) -> int:
    """How many workers a message takes along until it is convicted: the first one, then out of its cell."""
    history = History(crashes=1, strikes=1, candidate=True, shared_blame=True)
    for own in itertools.count(2):
        beside = 1 if needs_idle_worker(history) else together
        blow = Blow(beside, ran_s, own, (deaths // 6 + own, deaths + own), workers)
        end = end_of(DeadStart(IN_A_CELL, history=history, blow=blow))
        if end.end is StartEnd.STRIKE:
            return own
        history = _in_doubt(history, end)
    raise AssertionError


def test_NEW_1_what_kills_its_worker_out_of_its_cell_is_convicted_by_its_sixth_death() -> None:
    for together, ran_s in itertools.product((2, 50, 200), (0.1, 1.0, 60.0)):
        least = 1 if together == 2 else 0  # two doubts that two share are a whole one
        assert _deaths_until_convicted(together, 0, ran_s, 1) == 1 + SHARED_DOUBTS + PROOF - least
    assert _deaths_until_convicted(50, 60, 0.1, 4) == 1 + SHARED_DOUBTS + PROOF, "quick among many that die"
    assert _deaths_until_convicted(50, 60, 60.0, 4) < 250, "slow among many that die: bounded still"


def test_NEW_1_no_innocent_is_convicted_by_outside_kills_that_take_its_worker_again_and_again() -> None:
    """A fleet in which each worker is killed every three minutes, and a task of a minute.

    Alone in its worker, a run is hit with a chance of 28 %: to be hit so often in a row is as good as never.
    """
    for workers in (1, 2, 10, 100):
        assert _deaths_until_convicted(1, 20 * workers, 60.0, workers) > 100
    dead = DeadStart(IN_A_CELL, blow=Blow(50, 60.0, 2, (13, 80), 4))
    assert not end_of(dead).spoilt, "no worker is emptied for it"


def test_NEW_1_a_worker_that_dies_with_fifty_on_trial_convicts_none_of_them_however_often() -> None:
    history = History(crashes=1, strikes=1, candidate=True, shared_blame=True)
    for _ in range(100):
        end = end_of(DeadStart(IN_A_CELL, history=history, blow=Blow(50)))
        assert end.end is StartEnd.TRY_AGAIN
        history = _in_doubt(history, end)
        assert convict(history, Limits(max_crashes=1)) is None


def test_a_doubt_by_a_worker_of_the_version_before_counts_and_weighs_nothing() -> None:
    """It had no weight, and where a cell is beside an idle pool its start says ``ALONE``."""
    alone = IN_A_CELL._replace(alone=1)
    before = History(crashes=1, spoilt=3)
    end = end_of(DeadStart(alone, history=before))
    assert (end.end, end.doubt) == (StartEnd.TRY_AGAIN, WHOLE)
