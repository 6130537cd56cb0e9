"""What a worker's portrait of itself means: every state, and that none is said of a worker that works."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.ledger.fleet_model import WorkerRecord
from celery_poison.portrait import STUCK, Condition, Portrait, judge
from celery_poison.worker.self_portrait import Ages, Children
from celery_poison.worker.threads import LoopClock

#: One that works: a prefork worker under load.
WELL = Portrait(
    patience=30.0,
    loop_turned_ago=0.1,
    children=4,
    children_expected=4,
    slots=4,
    slots_busy=4,
    oldest_waiting=500.0,
)
LONG = WELL.patience + 0.1
#: Each trouble, in the order in which it is named.
TROUBLES: dict[Condition, dict[str, Any]] = {
    Condition.STUCK_LOOP: {"loop_turned_ago": LONG},
    Condition.STUCK_SLOTS: {"slots_past": 4},
    Condition.NO_BROKER: {"broker_away": LONG},
    Condition.NO_CHILDREN: {"children": 0, "childless": LONG},
}


@pytest.mark.parametrize("mixed", [*product([False, True], repeat=len(TROUBLES))], ids=str)
def test_NEW_25_the_gravest_trouble_of_a_worker_is_its_condition(mixed: tuple[bool, ...]) -> None:
    there = [condition for condition, is_there in zip(TROUBLES, mixed, strict=True) if is_there]
    seen = WELL
    for condition in there:
        seen = replace(seen, **TROUBLES[condition])
    gravest = there[0] if there else Condition.WORKING
    for is_alive, is_stopping, is_deaf in product([False, True], repeat=3):
        expected = gravest
        if not is_alive:
            expected = Condition.SILENT
        elif is_stopping:
            expected = Condition.STOPPING
        elif is_deaf and not there:
            expected = Condition.DEAF
        assert judge(seen, is_alive=is_alive, is_stopping=is_stopping, is_deaf=is_deaf) is expected


@pytest.mark.parametrize(
    "otherwise",
    [
        {"loop_turned_ago": None},
        {"loop_turned_ago": 30.0},
        {"loop_turned_ago": 90_000.0, "tasks_stop_loop": True, "slots": 1, "slots_busy": 1},
        {"broker_away": 30.0, "loop_turned_ago": None},
        {"children": 0, "childless": 30.0},
        {"children": 0, "children_expected": 0, "childless": LONG, "oldest_waiting": 0.0},
        {"children": 0, "children_expected": 0},
        {"unanswered": 30.0},
        {"unanswered": LONG, "tasks_stop_loop": True, "slots": 1, "slots_busy": 1},
        {"childless": LONG},
        {"slots_past": 3},
        {"slots": 0, "slots_past": 0},
        {"oldest_waiting": 90_000.0},
    ],
    ids=[
        "before the loop's first turn",
        "a loop that stood for a while",
        "solo: a task of 25 hours",
        "a broker that is away for a while",
        "pool processes that all start at this moment",
        "a pool that was scaled to no process while there is nothing to do",
        "a pool that has no processes",
        "a broker that does not answer for a while",
        "solo: a broker that may have answered during a task of 25 hours",
        "one process came up just now",
        "one slot is free still",
        "a pool that tells no slots",
        "a long queue in the worker",
    ],
)
def test_NEW_25_a_worker_works_with(otherwise: dict[str, Any]) -> None:
    assert judge(replace(WELL, **otherwise)) is Condition.WORKING


def test_NEW_25_solo_is_stuck_where_its_loop_stands_in_no_task_or_its_task_is_far_past_its_limit() -> None:
    solo = replace(WELL, tasks_stop_loop=True, slots=1, slots_busy=1, loop_turned_ago=LONG)
    assert judge(replace(solo, slots_busy=0)) is Condition.STUCK_LOOP
    assert judge(replace(solo, slots_past=1)) is Condition.STUCK_SLOTS


def test_NEW_25_a_worker_of_an_older_version_draws_no_portrait_and_is_judged_without() -> None:
    record = WorkerRecord(worker="w1@h/b")
    assert record.portrait is None and record.condition() is Condition.WORKING
    assert record.condition(is_deaf=True) is Condition.DEAF
    assert replace(record, alive=False).condition() is Condition.SILENT


def test_a_portrait_survives_its_heartbeat_and_what_another_version_adds_or_leaves_out() -> None:
    seen = replace(WELL, broker_away=1.5, loop_turned_ago=None)
    assert Portrait.decode(seen.encode()) == seen
    assert Portrait.decode('{"slots": 3, "new": 1, "also": "x"}') == Portrait(slots=3)


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{", "[" * 20_000, '{"slots": "three"}'])
def test_what_is_no_portrait_is_none(text: str) -> None:
    assert Portrait.decode(text) in (None, Portrait())


def test_NEW_25_each_condition_of_a_worker_that_does_not_work_has_a_sentence_and_a_cure() -> None:
    assert {*STUCK} == {*TROUBLES, Condition.FROZEN}
    for condition, otherwise in TROUBLES.items():
        record = WorkerRecord(worker="w1@h/b", portrait=replace(WELL, **otherwise))
        assert record.trouble.startswith(f"worker w1@h/b does not work ({condition}): ")
        assert "; cure: " in record.trouble
        assert replace(record, stopping=True).trouble == replace(record, alive=False).trouble == ""
    assert WorkerRecord(worker="w1@h/b", portrait=WELL).trouble == ""
    deaf = replace(WELL, unanswered=LONG)
    shrunk = replace(WELL, children_expected=0, children=0, childless=LONG)
    assert judge(deaf) is Condition.STUCK_LOOP and judge(shrunk) is Condition.NO_CHILDREN
    assert "its broker has not answered for 30s" in WorkerRecord(worker="w1@h/b", portrait=deaf).trouble
    assert "cure: control pool_grow" in WorkerRecord(worker="w1@h/b", portrait=shrunk).trouble
    taken = WorkerRecord(worker="w1@h/b", alive=False, frozen_since=1.0, host="h", pid=7)
    assert taken.condition() is Condition.FROZEN
    assert taken.trouble.endswith("; cure: restart it (process 7 on h)")


# --- what it is drawn from --------------------------------------------------------------------------


def test_the_clock_runs_only_while_there_is_a_loop() -> None:
    clock, consumer = LoopClock(), SimpleNamespace(perform_pending_operations=list)
    clock.follow(consumer)
    assert clock.turned_ago() is None and clock.away_for() is None
    clock.connected()
    assert clock.turned_ago() is None, "it has not turned yet"
    consumer.perform_pending_operations()
    assert clock.turned_ago() is not None
    clock.away()
    assert clock.turned_ago() is None and clock.away_for() is not None
    consumer.perform_pending_operations()
    assert clock.turned_ago() is None, "a loop of a lost connection"
    clock.connected()
    assert clock.turned_ago() is None and clock.away_for() is None
    clock.turn()
    clock.left()
    assert clock.turned_ago() is None and clock.away_for() is None


def test_a_request_ages_from_the_first_look_at_it_and_is_forgotten_when_it_is_gone() -> None:
    ages, one, two = Ages(), Condition.DEAF, Condition.SILENT
    assert dict(ages.look([one])) == {one: 0.0}
    second = dict(ages.look([one, two]))
    assert second[one] > second[two] == 0.0
    assert dict(ages.look([two])).keys() == {two}
    assert dict(ages.look([one])) == {one: 0.0}


def test_pool_processes_are_missed_only_beyond_the_time_that_celery_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, begun = [100.0], [0]
    monkeypatch.setattr("celery_poison.worker.self_portrait.monotonic", lambda: now[0])
    monkeypatch.setattr("celery_poison.worker.self_portrait.all_total_count", begun)
    app = SimpleNamespace(conf=SimpleNamespace(worker_proc_alive_timeout=4.0))
    facts: Any = SimpleNamespace(contained=False)
    inner = SimpleNamespace(_processes=2, _pool=["a", "b"], _all_inqueues={7})
    children, pool = Children(app, facts), SimpleNamespace(_pool=inner)
    assert children.look(pool) == (1, 2, 0.0)
    inner._all_inqueues = set()
    now[0] += 10
    assert children.look(pool) == (0, 2, 6.0)
    begun[0] += 1
    assert children.look(pool) == (0, 2, 0.0), "one came up between two looks, and began a task"
    assert Children(app, SimpleNamespace(contained=True)).look(pool) == (0, 0, 0.0)  # type: ignore[arg-type]


def test_NEW_25_a_worker_that_was_told_to_consume_nothing_is_named_and_one_that_is_paused_is_not() -> None:
    told = WorkerRecord(worker="w1@h/b", portrait=replace(WELL, loop_turned_ago=0.1))
    assert told.condition() is Condition.WORKING and "consumes no queue; cure: " in told.idle_story
    others = (
        {"queues": "celery"},
        {"paused": "celery"},
        {"stopping": True},
        {"alive": False},
        {"portrait": None},
    )
    assert not any(replace(told, **otherwise).idle_story for otherwise in others)
