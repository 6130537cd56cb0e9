"""What becomes of the first runs of a task under a new version (NEW-18): every state, every end."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_poison.basics.parts import Turn
from celery_poison.extensions.deploy_guard import why_off
from celery_poison.extensions.deploy_guard.first_runs import (
    DEATHS,
    GRACE,
    FirstRunOutcome,
    FirstRuns,
    Over,
    begun,
    ended,
    turn_of,
)
from celery_poison.settings import Settings

NOW = 1_000_000
RUNNING = begun(FirstRuns(), "m", "held", NOW)


@pytest.mark.parametrize(
    ("over", "token", "lives", "is_old", "is_suspect", "has_room"),
    [*product(Over, ("", "held", "mine"), *(4 * [(False, True)]))],
)
def test_NEW_18_whose_turn_it_is(
    over: Over, token: str, lives: bool, is_old: bool, is_suspect: bool, has_room: bool
) -> None:
    runs = FirstRuns(over=over, token=token, mid="m", since=NOW - (GRACE if is_old else 1), began=1)
    told = turn_of(runs, "mine", now=NOW, lives=lives, is_suspect=is_suspect, has_room=has_room)
    if over is not Over.NOT:
        assert told is Turn.BEGIN
    elif token == "mine":
        assert told is Turn.ALONE
    else:
        is_free = not token or (is_old and not lives)
        assert told is (Turn.ALONE if is_free and has_room and not is_suspect else Turn.PARK)


@pytest.mark.parametrize("outcome", FirstRunOutcome)
@pytest.mark.parametrize("over", Over)
def test_NEW_18_what_is_over_stays_so(over: Over, outcome: FirstRunOutcome) -> None:
    runs = FirstRuns(token="held", over=over)
    assert (ended(runs, "held", outcome, 3) == runs) is (over is not Over.NOT)


def test_NEW_18_runs_that_end_alive_count_in_a_row_and_a_death_begins_anew() -> None:
    runs = FirstRuns()
    for number, outcome in enumerate(
        [FirstRunOutcome.ALIVE, FirstRunOutcome.ALIVE, FirstRunOutcome.DIED, *3 * [FirstRunOutcome.ALIVE]]
    ):
        assert runs.over is Over.NOT
        runs = ended(begun(runs, "m", str(number), NOW), str(number), outcome, 3)
        assert not runs.token
    assert (runs.over, runs.dead) == (Over.WELL, ("2",))


def test_NEW_18_every_third_run_that_dies_never_ends_well() -> None:
    runs = FirstRuns()
    for number in range(1, 7):
        outcome = FirstRunOutcome.ALIVE if number % 3 else FirstRunOutcome.DIED
        runs = ended(begun(runs, "m", str(number), NOW), str(number), outcome, 3)
    assert runs.over is Over.DEATHS


def test_NEW_18_a_death_counts_once_also_after_another_run_has_the_turn() -> None:
    runs = begun(RUNNING, "n", "next", NOW + 2 * GRACE)
    once = ended(runs, "held", FirstRunOutcome.DIED, 3)
    assert once.token == "next" and ended(once, "held", FirstRunOutcome.DIED, 3) is once
    assert (
        ended(runs, "held", FirstRunOutcome.ALIVE, 3)
        is runs
        is ended(runs, "held", FirstRunOutcome.UNKNOWN, 3)
    )
    assert ended(once, "next", FirstRunOutcome.DIED, 3).over is Over.DEATHS


@given(st.lists(st.tuples(st.sampled_from(FirstRunOutcome), st.integers(0, 3))), st.integers(1, 5))
def test_NEW_18_no_order_of_ends_pauses_for_fewer_deaths_or_ends_well_for_fewer_runs(
    ends: list[tuple[FirstRunOutcome, int]], needed: int
) -> None:
    runs, alive, dead = FirstRuns(), 0, set()
    for number, (outcome, late) in enumerate(ends):
        if runs.over is not Over.NOT:
            break
        token = str(number)
        runs = begun(runs, "m", token, NOW)
        of = str(max(0, number - late))
        if outcome is FirstRunOutcome.DIED and of not in dead:
            dead.add(of)
            alive = 0
        elif outcome is FirstRunOutcome.ALIVE and of == token:
            alive += 1
        runs = ended(runs, of, outcome, needed)
        assert (runs.alive, len(runs.dead)) == (alive, len(dead))
        assert (runs.over is Over.DEATHS) is (len(dead) >= DEATHS)
        assert (runs.over is Over.WELL) is (alive >= needed and len(dead) < DEATHS)
        assert FirstRuns.decode(runs.encode()) == runs


@pytest.mark.parametrize("raw", [b"{}", b"[1]", b"nonsense", b'[1,2,3,4,5,6,"of a newer version"]', b"null"])
def test_NEW_18_what_a_newer_version_wrote_holds_nothing_back(raw: bytes) -> None:
    assert FirstRuns.decode(raw).over is Over.LATE
    assert FirstRuns.decode(b"") == FirstRuns()


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({}, "poison_code_version is not set"),
        ({"poison_code_version": "1", "poison_trial": "queue"}, "poison_trial='queue'"),
        ({"poison_code_version": "1", "poison_observe_only": True}, "poison_observe_only is set"),
        ({"poison_code_version": "1"}, ""),
    ],
)
def test_NEW_18_what_keeps_the_guard_off_names_the_setting(conf: dict[str, object], said: str) -> None:
    told = why_off(Settings.from_conf({"poison_deploy_guard": True, **conf}))
    assert told.startswith(said) and bool(told) is bool(said)
