"""The judge sees what is planted, and nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.excuses import DEATH, EXPIRES, ITS_END, PARKED, REMEMBERED, Wrong
from tests.chaos.judge import judge, judge_plain
from tests.chaos.runs import Blow, Facts, Sent
from tests.chaos.world import facts, from_log, kill, lines_of, run


def found(given: Facts) -> list[tuple[Wrong, str]]:
    """What fails: without an excuse."""
    return [(finding.case.wrong, finding.case.id) for finding in judge(given) if not finding.excuse]


def excused(given: Facts) -> list[Wrong]:
    assert not found(given), found(given)
    return [finding.case.wrong for finding in judge(given)]


# --- what is planted in a task log -----------------------------------------------------------------


def test_a_log_in_which_each_message_is_done_once_is_without_fault() -> None:
    log = [*lines_of("a", "r1", "w1/1", 1, 2, 3), *lines_of("b", "r2", "w1/1", 1.5, 2.5)]
    assert judge(from_log(*log)) == []


def test_a_planted_loss_is_found() -> None:
    assert found(from_log(*lines_of("a", "r1", "w1/1", 1, 2, end=False))) == [(Wrong.LOST, "a")]


def test_a_message_that_never_began_is_lost_and_one_that_may_not_have_arrived_is_not() -> None:
    sent = {"a": Sent("healthy", 1.0, True), "b": Sent("healthy", 1.0, False)}
    assert found(Facts(sent, {}, [])) == [(Wrong.LOST, "a")]


def test_a_planted_double_is_found() -> None:
    log = [*lines_of("a", "r1", "w1/1", 1, 2), *lines_of("a", "r2", "w2/1", 5, 6)]
    assert found(from_log(*log)) == [(Wrong.TWICE, "a")]


def test_a_planted_overlap_is_found_also_where_one_of_the_two_never_ended() -> None:
    log = [*lines_of("a", "r1", "w1/1", 1, 2, 3, end=False), *lines_of("a", "r2", "w2/1", 2.5, 4)]
    assert found(from_log(*log)) == [(Wrong.OVERLAP, "a")]
    one_after_the_other = [
        *lines_of("a", "r1", "w1/1", 1, 2, end=False),
        *lines_of("a", "r2", "w2/1", 2.5, 4),
    ]
    assert judge(from_log(*one_after_the_other)) == []


# --- what excuses it, and what does not ------------------------------------------------------------


def test_time_in_which_a_worker_stood_still_is_no_overlap() -> None:
    runs = run("a", 1, 9), run("a", 2, None, "w2/1", last=8.0)
    still = Blow("stop-4", 1.5, 8.5, ("w1/1",))
    assert found(facts(*runs)) == [(Wrong.OVERLAP, "a")]
    assert judge(facts(*runs, blows=(still,))) == []
    assert found(facts(*runs, blows=(replace(still, lives=("w3/1",)),))) == [(Wrong.OVERLAP, "a")]
    assert found(facts(*runs, blows=(replace(still, ended=7.0),))) == [(Wrong.OVERLAP, "a")]


@pytest.mark.parametrize(
    ("died", "excuses"), [(1.9, True), (2.0, True), (3.9, True), (4.1, False), (0.5, False)]
)
def test_what_a_dead_worker_could_not_acknowledge_may_be_done_twice(died: float, excuses: bool) -> None:
    given = facts(run("a", 0, 2), run("a", 6, 7, "w2/1"), blows=(Blow(DEATH, died, died, ("w1/1",)),))
    twice = [finding for finding in judge(given) if finding.case.wrong is Wrong.TWICE]
    assert [bool(finding.excuse) for finding in twice] == [excuses]


def test_short_outages_in_a_row_excuse_as_a_long_one_does_and_only_for_whom_they_kept_silent() -> None:
    runs = run("a", 0, 2), run("a", 13, 14, "w2/1")
    row = [Blow("redis-down", 1, 6), Blow("net-freeze-4", 5, 9, ("w1/1",)), Blow("stop-4", 8, 12, ("w1/1",))]
    assert excused(facts(*runs, blows=row)) == [Wrong.TWICE]
    assert found(facts(*runs, blows=row[:1])), "one alone is too short"
    assert found(facts(*runs, blows=[row[0], replace(row[2], began=8.0)])), "a gap lets a heartbeat through"
    others = [row[0], *(replace(blow, lives=("w3/1",)) for blow in row[1:])]
    assert found(facts(*runs, blows=others))


def test_the_death_of_another_worker_excuses_nothing() -> None:
    given = facts(
        run("a", 0, 2),
        run("a", 6, 7, "w2/1"),
        blows=(Blow("kill-main", 2.4, 2.4, ("w2/1",)), Blow(DEATH, 2.5, 2.5, ("w2/1",))),
    )
    assert found(given) == [(Wrong.TWICE, "a")]


def test_an_acknowledgement_that_could_not_get_out_has_more_time() -> None:
    outage = Blow("redis-down", 1.5, 6.5)
    late = Blow("kill-main", 9.0, 9.0, ("w1/1",)), Blow(DEATH, 9.1, 9.1, ("w1/1",))
    runs = run("a", 0, 2), run("a", 20, 21, "w2/1")
    assert found(facts(*runs, blows=late)) == [(Wrong.TWICE, "a")]
    assert set(excused(facts(*runs, blows=(outage, *late)))) == {Wrong.TWICE, Wrong.ENDED}


def test_a_killed_pool_process_excuses_its_own_run_only() -> None:
    first, second = run("a", 0, 2), run("a", 6, 7)
    assert excused(facts(first, second, blows=(Blow("kill-child", 2.1, 2.1, ("w1/1",), (first.pid,)),)))
    other = Blow("kill-child", 2.1, 2.1, ("w1/1",), (first.pid + 1000,))
    assert found(facts(first, second, blows=(other,))) == [(Wrong.TWICE, "a")]


@pytest.mark.parametrize("name", ["stop-15", "net-freeze-15", "net-cut-5", "net-cut-15"])
def test_who_was_taken_for_dead_may_overlap_with_the_new_owner(name: str) -> None:
    runs = run("a", 1, 19), run("a", 13, 18.5, "w2/1")
    away = Blow(name, 2, 17, ("w1/1",))
    assert set(excused(facts(*runs, blows=(away,)))) == {Wrong.TWICE, Wrong.OVERLAP}
    assert found(facts(*runs, blows=(replace(away, lives=("w3/1",)),)))
    assert found(facts(*runs, blows=(replace(away, name="net-freeze-4"),)))


def test_what_redis_forgets_may_run_beside_what_is_still_running() -> None:
    for begin, excuses in ((8.9, False), (9.1, True), (16.0, True), (16.2, False)):
        given = facts(
            run("a", begin, begin + 30),
            run("a", begin + 1, None, "w2/1"),
            blows=(Blow("redis-lost-second", 10, 11),),
        )
        assert bool(found(given)) != excuses
    ended = facts(run("a", 1, 10.5), run("a", 12, 13, "w2/1"), blows=(Blow("redis-lost-second", 10, 11),))
    assert excused(ended) == [Wrong.TWICE]
    assert found(replace(ended, blows=[Blow("redis-kill", 10, 11)])) == [(Wrong.TWICE, "a")]


@pytest.mark.parametrize(("name", "lives"), [("rabbit-close", ()), ("net-drop", ("w1/1",))])
def test_what_rabbitmq_gives_to_another_may_run_until_the_first_notices(
    name: str, lives: tuple[str, ...]
) -> None:
    given = facts(run("a", 10.5, 12.5), run("a", 11.5, 13, "w2/1"), blows=(Blow(name, 10, 10.2, lives),))
    assert {*excused(replace(given, broker="rabbitmq"))} == {Wrong.TWICE, Wrong.OVERLAP}
    assert found(given), "on Redis nobody gets it before the failover"
    late = facts(run("a", 10.5, 19), run("a", 16.3, 18, "w2/1"), blows=(Blow(name, 10, 10.2, lives),))
    assert found(replace(late, broker="rabbitmq"))
    elsewhere = replace(given, blows=[Blow("net-drop", 10, 10.2, ("w3/1",))])
    assert found(replace(elsewhere, broker="rabbitmq"))


def test_a_copy_that_waits_in_rabbitmq_may_run_when_the_ledger_that_tells_it_was_emptied() -> None:
    runs, blow = (run("a", 1, 2), run("a", 40, 41, "w2/1")), Blow("redis-empty", 20, 20)
    given = replace(facts(*runs, blows=(blow,)), broker="rabbitmq")
    assert excused(given) == [Wrong.TWICE]
    for other in (replace(blow, began=40.5), replace(blow, began=1.5), replace(blow, name="redis-kill")):
        assert found(replace(given, blows=[other])) == [(Wrong.TWICE, "a")]
    assert found(replace(given, broker="redis")) == [(Wrong.TWICE, "a")], "there the copy is gone, too"


def test_emptying_redis_excuses_the_loss_of_what_was_in_it_only() -> None:
    sent = {id: Sent("healthy", 99, True) for id in ("there", "elsewhere")}
    given = Facts(sent, {}, [Blow("redis-empty", 100, 100, gone=("there",))])
    assert found(given) == [(Wrong.LOST, "elsewhere")]


def test_a_lost_second_excuses_the_loss_of_what_was_parked_in_it_only_on_rabbitmq() -> None:
    sent = {id: Sent("healthy", 9, True) for id in ("parked", "elsewhere")}
    given = Facts(sent, {}, [Blow("redis-lost-second", 100, 101, gone=("parked",))], broker="rabbitmq")
    assert found(given) == [(Wrong.LOST, "elsewhere")]
    assert len(found(replace(given, broker="redis"))) == 2, "there the broker has lost that second, too"


@pytest.mark.parametrize("name", ["redis-lost-second", "redis-failover", "redis-switch"])
def test_a_redis_that_forgets_moments_excuses_what_was_sent_in_them(name: str) -> None:
    sent = {str(at): Sent("healthy", at, True) for at in (7.9, 8.1, 10.0, 11.1)}
    assert found(Facts(sent, {}, [Blow(name, 10, 11)])) == [(Wrong.LOST, "7.9"), (Wrong.LOST, "11.1")]


def test_an_innocent_may_be_convicted_only_on_trial_in_a_cell_that_was_killed() -> None:
    tried = run("a", 5, None, on_trial=True)
    blow = Blow("kill-cell", 5.5, 5.6, ("w1/1",))
    given = facts(tried, blows=(blow,), convicted={"a": 60.0})
    assert excused(given) == [Wrong.CONVICTED]
    late = replace(blow, began=15.0, ended=15.0)
    assert excused(replace(given, blows=[late])) == [Wrong.CONVICTED], "the cell had been stopped before"
    ended = replace(given, runs={"a": [replace(tried, end=6.0)]})
    assert found(replace(ended, blows=[late])) == [(Wrong.CONVICTED, "a")]
    assert found(replace(given, blows=[])) == [(Wrong.CONVICTED, "a")]
    assert found(replace(given, runs={"a": [replace(tried, on_trial=False)]})) == [(Wrong.CONVICTED, "a")]
    assert found(replace(given, blows=[replace(blow, lives=("w2/1",))])) == [(Wrong.CONVICTED, "a")]


def test_a_cell_that_is_killed_before_the_task_began_is_known_by_the_moment() -> None:
    blow = Blow("kill-watcher", 5.5, 5.6, ("w1/1",))
    given = facts(run("a", 1, None), blows=(blow,), convicted={"a": 6.0})
    assert excused(given) == [Wrong.CONVICTED]
    assert found(replace(given, convicted={"a": 12.0})) == [(Wrong.CONVICTED, "a")]
    assert found(replace(given, blows=[replace(blow, lives=())])) == [(Wrong.CONVICTED, "a")]


def test_where_nothing_is_tried_an_innocent_is_convicted_by_two_deaths_of_workers() -> None:
    runs = run("a", 1, None), run("a", 5, None, "w2/1")
    death = Blow(DEATH, 6, 6, ("w2/1",), note="status -11")
    given = replace(facts(*runs, blows=(death,), convicted={"a": 9.0}), tried=False)
    assert (Wrong.CONVICTED, "a") not in found(given)
    assert (Wrong.CONVICTED, "a") in found(replace(given, tried=True))
    assert (Wrong.CONVICTED, "a") in found(replace(given, runs={"a": [runs[1]]})), "one death is no proof"
    assert (Wrong.CONVICTED, "a") in found(replace(given, blows=[]))


def test_a_copy_is_recognised_on_rabbitmq_while_the_ledger_is_there() -> None:
    twice = run("a", 1, 2), run("a", 6, 7, "w2/1")
    away = Blow("redis-down", 5, 8)
    assert excused(facts(*twice, blows=(away,), broker="rabbitmq")) == [Wrong.TWICE]
    assert found(facts(*twice, blows=(away,))) == [(Wrong.TWICE, "a")]
    gone_by = replace(away, began=20, ended=25)
    assert found(facts(*twice, blows=(gone_by,), broker="rabbitmq")) == [(Wrong.TWICE, "a")]


def test_of_a_copy_that_was_killed_it_counts_when_that_was_let_in() -> None:
    runs = run("a", 1, 2), run("a", 6, None, "w2/1"), run("a", 20, 21, "w3/1")
    away = Blow("redis-down", 5, 8)
    assert excused(facts(*runs, blows=(away,), broker="rabbitmq")) == [Wrong.TWICE]
    assert found(facts(runs[0], runs[2], blows=(away,), broker="rabbitmq")) == [(Wrong.TWICE, "a")]


def test_a_lost_second_may_leave_an_end_that_was_kept_over_an_outage() -> None:
    lost = Blow("redis-lost-second", 30, 31)
    assert excused(facts(run("a", 9, 12), blows=(lost,), known={ITS_END: {"a"}})) == [Wrong.LEFT]
    for other in (replace(lost, name="redis-kill"), replace(lost, began=33, ended=34)):
        assert found(facts(run("a", 9, 12), blows=(other,), known={ITS_END: {"a"}})) == [(Wrong.LEFT, "a")]


def test_an_end_may_stay_on_record_only_of_a_worker_that_was_taken_for_dead() -> None:
    done = run("a", 6, 7)
    cut_off = Blow("net-cut-5", 1, 6, ("w1/1",))
    assert excused(facts(done, blows=(cut_off,), known={ITS_END: {"a"}})) == [Wrong.LEFT]
    assert found(facts(done, known={ITS_END: {"a"}})) == [(Wrong.LEFT, "a")]
    other = replace(cut_off, lives=("w2/1",))
    assert found(facts(done, blows=(other,), known={ITS_END: {"a"}})) == [(Wrong.LEFT, "a")]


def test_a_poison_may_kill_twice_and_must_be_convicted_then() -> None:
    twice = kill("p", 1), kill("p", 5, "w2/1")
    assert judge(facts(*twice)) == []
    assert found(facts(*twice, convicted={})) == [(Wrong.FREE, "p")]
    assert found(facts(*twice, kill("p", 9, "w3/1"))) == [(Wrong.KILLED, "p")]


def test_a_death_that_something_disturbed_does_not_count() -> None:
    thrice = kill("p", 1), kill("p", 10, "w2/1"), kill("p", 20, "w3/1")
    assert excused(facts(*thrice, blows=(Blow("redis-kill", 10.5, 11),))) == [Wrong.KILLED]
    assert found(facts(*thrice, blows=(Blow("redis-kill", 14, 15),))) == [(Wrong.KILLED, "p")]
    for life, excuses in (("w2/1", True), ("w1/1", False)):
        given = facts(*thrice, blows=(Blow("net-drop", 10.5, 11, (life,)),))
        assert bool(found(given)) != excuses
    four = facts(*thrice, kill("p", 30), blows=(Blow("redis-kill", 10.5, 11),))
    assert found(four) == [(Wrong.KILLED, "p")]


def test_a_trial_beside_which_its_worker_died_of_something_else_proves_nothing() -> None:
    death = Blow(DEATH, 10.1, 10.1, ("w2/1",), note="exit status -9")
    for on_trial, excuses in ((True, True), (False, False)):
        thrice = kill("p", 1), kill("p", 10, "w2/1", on_trial=on_trial), kill("p", 20, "w3/1")
        assert ((Wrong.KILLED, "p") not in found(facts(*thrice, blows=(death,)))) == excuses
        elsewhere = facts(*thrice, blows=(replace(death, lives=("w1/9",)),))
        assert (Wrong.KILLED, "p") in found(elsewhere)


def test_a_worker_may_end_when_it_was_killed_asked_to_or_ran_a_poison() -> None:
    death = Blow(DEATH, 5.2, 5.2, ("w1/1",), note="exit status -9")
    assert found(facts(blows=(death,))) == [(Wrong.ENDED, "")]
    for name in ("kill-main", "kill-group", "kill-container", "warm", "cold", "deploy"):
        assert excused(facts(blows=(Blow(name, 5, 5.1, ("w1/1",)), death))) == [Wrong.ENDED]
        assert found(facts(blows=(Blow(name, 5, 5.1, ("w2/1",)), death))) == [(Wrong.ENDED, "")]
    assert judge(facts(kill("p", 5), blows=(death,))) == []
    assert found(facts(kill("p", 5, "w2/1"), blows=(death,))) == [(Wrong.ENDED, "")]


def test_what_celery_cannot_recover_from_and_what_is_left_over_fails() -> None:
    given = facts(complaints=[("w1/1", "Unrecoverable error: AttributeError")], left={"unacked": 3})
    assert found(given) == [(Wrong.ENDED, ""), (Wrong.LEFT, "")]


def test_an_end_may_stay_on_record_when_redis_has_forgotten_who_would_ask_for_it() -> None:
    given = facts(run("a", 1, 2), known={ITS_END: {"a"}})
    assert found(given) == [(Wrong.LEFT, "a")]
    assert excused(replace(given, blows=[Blow("redis-empty", 0.5, 0.6, gone=("a",))])) == [Wrong.LEFT]
    assert found(replace(given, blows=[Blow("redis-empty", 0.5, 0.6, gone=("b",))])) == [(Wrong.LEFT, "a")]


def test_ends_may_wait_for_a_copy_where_something_was_lost() -> None:
    given = facts(left={"ends that wait for a copy": 3})
    assert found(given) == [(Wrong.LEFT, "")]
    assert excused(replace(given, blows=[Blow("rabbit-close", 1, 2)])) == [Wrong.LEFT]
    assert found(replace(given, left={"running": 3}, blows=[Blow("rabbit-close", 1, 2)])) == [
        (Wrong.LEFT, "")
    ]


def test_what_is_remembered_of_a_message_that_is_gone_is_excused_and_of_one_that_was_done_is_not() -> None:
    gone, done = run("a", 1, None), run("b", 1, 8)
    given = facts(gone, done, blows=(Blow("redis-empty", 5, 6, gone=("a", "b")),))
    assert Wrong.LEFT in excused(replace(given, known={REMEMBERED: {"a"}}))
    assert found(replace(given, known={REMEMBERED: {"b"}})) == [(Wrong.LEFT, "b")]
    assert (Wrong.LEFT, "a") in found(replace(given, known={REMEMBERED: {"a"}}, blows=[]))
    unheard = [*given.blows, Blow("net-cut-5", 7, 12, ("w1/1",))]
    assert Wrong.LEFT in excused(replace(given, known={REMEMBERED: {"b"}}, blows=unheard))


def test_a_worker_that_celery_could_not_start_is_judged_once_and_excused_by_what_kept_it_from_that() -> None:
    death = Blow(DEATH, 9, 9, ("w1/1",), note="status 1")
    for name, text in (
        ("disk-full", "OSError(28, 'No space left on device')"),
        ("kill-child", "WorkerLostError('Could not start worker processes')"),
    ):
        blows = (Blow(name, 5, 6, ("w1/1",)), death)
        assert excused(facts(blows=blows, complaints=[("w1/1", text)])) == [Wrong.ENDED]
        assert found(facts(blows=blows, complaints=[("w1/1", "KeyError('a')")])) == [(Wrong.ENDED, "")]
        assert found(facts(blows=(death,), complaints=[("w1/1", text)])) == [(Wrong.ENDED, "")]


@pytest.mark.parametrize(("broker", "blow"), [("rabbitmq", "rabbit-kill"), ("redis", "redis-kill")])
def test_a_worker_whose_broker_goes_away_in_mingle_is_given_up_by_celery_itself(
    broker: str, blow: str
) -> None:
    text = "Unrecoverable error: OperationalError('Server unexpectedly closed connection')"
    blows = (Blow(blow, 5, 6), Blow(DEATH, 9, 9, ("w1/1",), note="status 1"))
    given = facts(blows=blows, complaints=[("w1/1", f"{text} (in mingle)")], broker=broker)
    assert excused(given) == [Wrong.ENDED]
    assert found(replace(given, complaints=[("w1/1", text)])) == [(Wrong.ENDED, "")]
    assert found(replace(given, blows=[blows[1]])) == [(Wrong.ENDED, "")]


def test_a_message_is_remembered_if_its_worker_ended_before_it_could_tell_of_its_end() -> None:
    away, death = Blow("redis-down", 7, 12), Blow(DEATH, 9, 9, ("w1/1",), note="status 0")
    asked = Blow("warm", 8, 9, ("w1/1",))
    given = facts(run("a", 1, 8), blows=(away, death, asked), known={REMEMBERED: {"a"}})
    assert Wrong.LEFT in excused(given) and Wrong.LEFT in excused(replace(given, known={PARKED: {"a"}}))
    assert (Wrong.LEFT, "b") in found(replace(given, known={PARKED: {"b"}}))
    assert (Wrong.LEFT, "a") in found(replace(given, blows=[away]))
    assert (Wrong.LEFT, "a") in found(replace(given, blows=[replace(death, began=30, ended=30)]))


def test_a_history_that_expires_may_stay_of_what_ended_in_a_worker_that_was_taken_for_dead() -> None:
    away = Blow("net-freeze-15", 5, 20, ("w1/1",))
    given = facts(run("a", 1, 8), blows=(away,), known={EXPIRES: {"a"}})
    assert excused(given) == [Wrong.LEFT]
    assert found(replace(given, blows=[replace(away, lives=("w2/1",))])) == [(Wrong.LEFT, "a")]
    assert found(replace(given, known={REMEMBERED: {"a"}})) == [(Wrong.LEFT, "a")]


@pytest.mark.parametrize(
    "error", ["BlockingSwitchOutError()", "RuntimeError('cannot schedule new futures after shutdown')"]
)
def test_how_celery_ends_a_cold_gevent_or_threads_is_excused_for_the_worker_that_was_asked_to(
    error: str,
) -> None:
    given = facts(complaints=[("w1/1", f"Unrecoverable error: {error}")])
    assert excused(replace(given, blows=[Blow("cold", 1, 2, ("w1/1",))])) == [Wrong.ENDED]
    assert found(replace(given, blows=[Blow("cold", 1, 2, ("w2/1",))])) == [(Wrong.ENDED, "")]


# --- plain Celery ----------------------------------------------------------------------------------


def test_of_plain_celery_only_losses_doubles_and_loops_are_counted_and_nothing_is_excused() -> None:
    given = facts(
        run("lost", 1, None),
        run("twice", 1, 2),
        run("twice", 3, 4),
        *(kill("loops", at) for at in (1, 5, 9)),
        blows=(Blow("redis-empty", 0, 100), Blow(DEATH, 2.1, 2.1, ("w1/1",))),
        left={"unacked": 3},
        convicted={},
    )
    assert [finding.case.wrong for finding in judge_plain(given)] == [Wrong.LOST, Wrong.TWICE, Wrong.KILLED]


# --- any log ---------------------------------------------------------------------------------------

_spans = st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 10), st.booleans()), min_size=1, max_size=6)


@given(_spans)
def test_any_log_without_faults_is_judged_as_counted_by_hand(spans: list[tuple[float, float, bool]]) -> None:
    runs = [
        run("a", begin, begin + length if ends else None, last=begin + length)
        for begin, length, ends in spans
    ]
    ends = sum(ended for _, _, ended in spans)
    overlapping = sum(
        min(one.last, other.last) > max(one.begin, other.begin)
        for number, one in enumerate(runs)
        for other in runs[number + 1 :]
    )
    wrongs = [wrong for wrong, _ in found(facts(*runs))]
    assert wrongs.count(Wrong.LOST) == (ends == 0)
    assert wrongs.count(Wrong.TWICE) == max(0, ends - 1)
    assert wrongs.count(Wrong.OVERLAP) == overlapping


def test_what_ended_while_redis_took_no_note_may_be_remembered() -> None:
    for over in (run("b", 1, 4), replace(run("b", 1, None), kill=4)):
        for name in ("redis-full", "redis-lost-second"):
            assert excused(facts(over, blows=(Blow(name, 3, 5),), known={REMEMBERED: {"b"}})) == [Wrong.LEFT]
            late = facts(over, blows=(Blow(name, 14, 16),), known={REMEMBERED: {"b"}})
            assert found(late) == [(Wrong.LEFT, "b")]
