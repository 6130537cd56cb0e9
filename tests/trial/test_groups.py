"""Very many suspects are tried in groups, which are halved until the culprit dies alone (NEW-1)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.worker.trial.group import FEW
from tests.trial.conftest import Court

matrix = pytest.mark.matrix

#: So many are tried in groups.
MANY = FEW + 4
QUICK, STUCK = 12, 50
CROWD = QUICK + STUCK + 1

GREENLETS = ("gevent", "eventlet")
POOLS_AND_BROKERS = pytest.mark.parametrize(
    ("pool", "broker_url"),
    [
        pytest.param(pool, broker, id=f"{pool}-{broker}", marks=() if (pool, broker) == always else matrix)
        for always in [("gevent", "redis")]
        for pool, broker in itertools.product((*GREENLETS, "threads"), ("redis", "rabbitmq"))
    ],
    indirect=["broker_url"],
)


def became_suspects(court: Court) -> list[dict[str, str]]:
    return [entry for entry in court.events("crashed") if entry["incident"] == "i0"]


def in_groups(court: Court) -> list[dict[str, str]]:
    return [entry for entry in court.events("crashed") if entry["note"] == "on trial together with others"]


def hosts(pool: str) -> dict[str, Any]:
    return {"pool": pool, "concurrency": 50}


@POOLS_AND_BROKERS
def test_NEW_1_one_poison_among_many_is_found_by_halving_and_convicted_by_its_death_alone(
    court: Court, pool: str
) -> None:
    court.suspect("trial.sleeps", 1.0)  # keeps the cell until all the others are there
    quick = [court.suspect("trial.tells", n) for n in range(QUICK)]
    stuck = [court.suspect("trial.hangs", n) for n in range(STUCK // 2)]
    poison = court.suspect("trial.dies", "when-repaired")
    stuck += [court.suspect("trial.hangs", n) for n in range(STUCK // 2, STUCK)]
    with court.worker(**hosts(pool)) as worker:
        court.await_that(
            lambda: len(court.events("cleared")) == 1 + QUICK, "who has ended is cleared already"
        )
        court.await_start("hangs", STUCK)
        court.await_start("dies")
        assert {start.companions for start in court.on_trial()} == {CROWD - 1}
        court.marks.repair()
        court.await_that(lambda: court.quarantine.list() and not court.suspects(), "all judged")
        assert worker.is_alive()
        told = [each.get(timeout=10) for each in quick]
        assert [each.get(timeout=10) for each in stuck] == list(range(STUCK))
    assert {each["may_set_signals"] for each in told} == {pool in GREENLETS}, "as in its pool"
    assert set(court.marks.count("tells", "start").values()) == {1}, "who had ended did not run again"
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.cause, kept.strikes) == (poison.id, "signal:9", 2)
    (proof,) = [entry for entry in court.events("crashed") if entry["outcome"] == "exact"]
    assert proof["id"] == poison.id
    assert {each.id for each in (*stuck, poison)} <= {entry["id"] for entry in in_groups(court)}
    assert {entry["strikes"] for entry in in_groups(court)} == {"1"}, "nobody got another one for its group"
    cells = {entry["pid"] for entry in in_groups(court)}
    assert 1 <= len(cells) <= 3, "of 63, and of 25 if it is among the first; the last are tried one by one"
    assert {each.id for each in (*quick, *stuck)} < {entry["id"] for entry in court.events("cleared")}


def behind_one(court: Court, size: int) -> list[Any]:
    """Send suspects that end when they are repaired, behind one that keeps the cell for a moment."""
    court.suspect("trial.sleeps", 1.0)
    return [court.suspect("trial.waits", n) for n in range(size)]


@pytest.mark.parametrize("pool", ["threads", *(pytest.param(pool, marks=matrix) for pool in GREENLETS)])
def test_NEW_1_a_group_whose_worker_is_killed_from_outside_is_tried_again(court: Court, pool: str) -> None:
    suspects = behind_one(court, MANY)
    with court.worker(**hosts(pool)) as first:
        court.await_start("waits", MANY)
        first.kill_main()
        first.wait()
    with court.worker("w2", **hosts(pool)):
        court.await_that(lambda: any("w2" in start.worker for start in court.on_trial()), "tried again")
        again = [start for start in court.on_trial() if "w2" in start.worker]
        assert {start.companions for start in again} <= {0, MANY // 4 - 1}, (
            "a quarter, or one who came before the others"
        )
        court.marks.repair()
        assert {suspect.get(timeout=30) for suspect in suspects} == {"repaired"}
        court.await_acquittal()
    assert court.events("crashed") == became_suspects(court)
    assert {entry["failures"] for entry in court.events("interrupted")} <= {"0"}
    assert not court.quarantine.list()


@pytest.mark.parametrize("pool", [*(pytest.param(pool, marks=matrix) for pool in GREENLETS), "threads"])
def test_NEW_1_to_revoke_one_of_a_group_is_held_against_nobody_else(
    new_court: Callable[..., Court], redis_url: str, pool: str
) -> None:
    court = new_court(redis_url, poison_max_failures=1)
    suspects = behind_one(court, MANY)
    with court.worker(**hosts(pool)):
        court.await_start("waits", MANY)
        court.app.control.revoke(suspects[3].id, terminate=True)
        court.await_that(lambda: len(court.events("interrupted")) == MANY - 1, "all others are put back")
        court.marks.repair()
        others = [suspect for suspect in suspects if suspect is not suspects[3]]
        assert {other.get(timeout=30) for other in others} == {"repaired"}
        court.await_acquittal()
        assert suspects[3].state == "REVOKED"
    assert court.events("crashed") == became_suspects(court)
    assert not court.quarantine.list()


@matrix
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_NEW_1_who_ends_by_himself_in_a_group_ends_nobody_else_and_is_tried_alone(
    court: Court, pool: str
) -> None:
    court.suspect("trial.sleeps", 1.0)
    guilty = [court.suspect("trial.dies", "exit"), court.suspect("trial.dies", "memory-error")]
    for _ in range(MANY):
        court.suspect("trial.sleeps", 0.3)
    with court.worker(**hosts(pool)):
        court.await_that(lambda: len(court.quarantine.list()) == 2 and not court.suspects(), "all judged")
    kept = {record.id: record.cause for record in court.quarantine.list()}
    assert kept == {guilty[0].id: "system_exit", guilty[1].id: "memory_error"}
    assert len(in_groups(court)) == 2
    assert len(court.marks.all("sleeps", "start")) == MANY + 1, "nobody else was run again"


@matrix
def test_NEW_1_a_time_limit_ends_its_group_and_is_judged_alone(court: Court) -> None:
    court.suspect("trial.sleeps", 1.0)
    late = court.suspect("trial.waits", time_limit=1.0)
    others = [court.suspect("trial.hangs", n) for n in range(MANY)]
    with court.worker(**hosts("gevent")):
        court.await_start("waits", 2)
        court.await_that(lambda: late.state == "FAILURE", "ended by its limit, alone")
        assert sorted(other.get(timeout=30) for other in others) == list(range(MANY))
        court.await_acquittal()
    assert court.events("crashed") == became_suspects(court)
    assert len(court.marks.all("waits", "start")) == 2


@matrix
@pytest.mark.parametrize("pool", ["gevent", "threads"])
def test_TP1_5_a_group_that_takes_longer_than_the_visibility_timeout_runs_once(
    new_court: Callable[..., Court], redis_url: str, pool: str
) -> None:
    court = new_court(redis_url, broker_transport_options={"visibility_timeout": 2})
    suspects = behind_one(court, MANY)
    with court.worker(**hosts(pool)):
        court.await_start("waits", MANY)
        with court.worker("w2", **hosts(pool)) as other:
            other.wait_ready()
            time.sleep(5)  # longer than the timeout: nothing is to happen
        ((node, pid),) = {(start.worker, start.pid) for start in court.on_trial()}
        assert court.ledger.client.exists(court.ledger.keys.child(node, pid)), "their common lease"
        court.marks.repair()
        assert {suspect.get(timeout=30) for suspect in suspects} == {"repaired"}
        court.await_acquittal()
    assert set(court.marks.count("waits", "start").values()) == {1}


@matrix
@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_NEW_1_suspects_are_tried_one_by_one_where_it_is_asked_for_or_tasks_share_no_process(
    new_court: Callable[..., Court], redis_url: str, pool: str
) -> None:
    court = new_court(redis_url, poison_trial_group=1 if pool == "threads" else 64)
    behind_one(court, MANY)
    with court.worker(pool=pool, concurrency=10):
        court.await_start("waits")
        time.sleep(1)  # nothing to wait for: the others would have begun by now
        assert len(court.marks.all("waits", "start")) == 1
        court.marks.repair()
        court.await_acquittal()
