"""Very many suspects are tried in groups, which are halved until the culprit dies alone (NEW-1)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.trial.conftest import Court

MANY = 100


def in_groups(court: Court) -> list[dict[str, str]]:
    return [entry for entry in court.events("crashed") if entry["note"] == "on trial together with others"]


@pytest.mark.parametrize("pool", ["gevent", pytest.param("threads", marks=pytest.mark.matrix)])
def test_NEW_1_one_poison_among_a_hundred_suspects_costs_a_few_cells_and_nobody_else_is_convicted(
    court: Court, pool: str
) -> None:
    suspects = [court.suspect("trial.sleeps", n, 0.2, n == MANY // 2) for n in range(MANY)]
    with court.worker(pool=pool, concurrency=MANY) as worker:
        court.await_that(lambda: court.quarantine.list() and not court.suspects(), "all judged", 90)
        assert worker.is_alive()
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.cause) == (suspects[MANY // 2].id, "signal:9")
    cells = {entry["pid"] for entry in court.events("crashed") if entry["pid"] != "1"}
    assert 2 <= len(cells) <= 6, "those of 64, 32, 16 at most, and its own, with some luck fewer"
    assert len(in_groups(court)) > 16
    assert len({entry["id"] for entry in court.events("cleared")}) == MANY - 1
    (proof,) = [e for e in court.events("crashed") if e["outcome"] == "exact"]
    assert proof["id"] == kept.id


def waiting_group(court: Court, size: int) -> list[Any]:
    """Send suspects that end when they are repaired, behind one that is tried alone first."""
    court.suspect("trial.sleeps", 0, 2.0, False)
    return [court.suspect("trial.waits", n) for n in range(size)]


def test_NEW_1_who_ends_by_himself_in_a_group_ends_nobody_else_and_is_tried_alone(court: Court) -> None:
    court.suspect("trial.sleeps", 0, 2.0, False)
    suspects = [court.suspect("trial.dies", "exit"), court.suspect("trial.dies", "memory-error")]
    for n in range(1, 21):
        court.suspect("trial.sleeps", n, 0.5, False)
    with court.worker(pool="threads", concurrency=50):
        court.await_that(lambda: len(court.quarantine.list()) == 2 and not court.suspects(), "all judged")
    kept = {record.id: record.cause for record in court.quarantine.list()}
    assert kept == {suspects[0].id: "system_exit", suspects[1].id: "memory_error"}
    assert len(in_groups(court)) == 2
    assert len(court.marks.all("sleeps", "start")) == 21, "nobody else was run again"


@pytest.mark.parametrize("pool", [pytest.param("gevent", marks=pytest.mark.matrix), "threads"])
def test_NEW_1_to_revoke_one_of_a_group_puts_no_strike_on_the_others(court: Court, pool: str) -> None:
    suspects = waiting_group(court, 20)
    with court.worker(pool=pool, concurrency=50):
        court.await_start("waits", 20)
        court.app.control.revoke(suspects[3].id, terminate=True)
        court.await_that(lambda: len(court.events("interrupted")) == 19, "all others are put back")
        court.marks.repair()
        others = [suspect for suspect in suspects if suspect is not suspects[3]]
        assert {other.get(timeout=30) for other in others} == {"repaired"}
        court.await_acquittal()
        assert suspects[3].state == "REVOKED"
    assert len(court.events("crashed")) == 21, "those by which they became suspects"
    assert not court.quarantine.list()


def test_NEW_1_a_group_whose_worker_is_killed_from_outside_is_tried_one_by_one(court: Court) -> None:
    waiting_group(court, 20)
    with court.worker(pool="threads", concurrency=50) as first:
        court.await_start("waits", 20)
        first.kill_main()
        first.wait()
    with court.worker("w2", pool="threads", concurrency=50):
        court.await_start("waits", 21)
        assert len({start.id for start in court.on_trial() if "w1" not in start.worker}) == 1
        court.marks.repair()
        court.await_acquittal()
    assert len(court.events("crashed")) == 21, "those by which they became suspects"


@pytest.mark.parametrize(
    ("pool", "settings"), [("threads", {"poison_trial_group": 1}), ("gevent", {"task_time_limit": 60})]
)
def test_NEW_1_suspects_are_tried_one_by_one_where_it_is_asked_for_or_they_have_limits(
    new_court: Callable[..., Court], redis_url: str, pool: str, settings: dict[str, Any]
) -> None:
    court = new_court(redis_url, **settings)
    waiting_group(court, 20)
    with court.worker(pool=pool, concurrency=50):
        court.await_start("waits")
        time.sleep(1)  # nothing to wait for: the others would have begun by now
        assert len(court.marks.all("waits", "start")) == 1
        court.marks.repair()
