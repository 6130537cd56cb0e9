"""Many suspects are tried side by side, each in a cell of its own (NEW-1)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import PATIENCE
from tests.cells.apps import BEGINS_WITH
from tests.cells.conftest import POOLS, Court

matrix = pytest.mark.matrix

ALWAYS = ("prefork",)
EVERY_POOL = pytest.mark.parametrize(
    "pool", [pytest.param(pool, marks=() if pool in ALWAYS else matrix) for pool in POOLS]
)


@pytest.fixture
def three_cells(new_court: Callable[..., Court], redis_url: str) -> Court:
    return new_court(redis_url, poison_trial_cells=3)


@EVERY_POOL
def test_NEW_1_as_many_are_tried_at_once_as_there_are_cells_and_the_pool_goes_on(
    three_cells: Court, pool: str
) -> None:
    court = three_cells
    suspects = [court.suspect("trial.waits", n) for n in range(5)]
    with court.worker(pool=pool, concurrency=4):
        court.await_start("waits", 3)
        others = [court.app.tasks["trial.tells"].delay(n) for n in range(20)]
        assert not any(other.get(timeout=PATIENCE)["in_cell"] for other in others)
        assert len({start.pid for start in court.on_trial()}) == 3
        assert len(court.marks.all("waits", "start")) == 3, "the others wait for a cell"
        court.marks.repair()
        assert {suspect.get(timeout=PATIENCE) for suspect in suspects} == {"repaired"}
        court.await_acquittal()
    assert set(court.marks.count("waits", "start").values()) == {1}
    assert len({mark.pid for mark in court.marks.all("waits", "start")}) == 5, "each in its own"


@EVERY_POOL
def test_NEW_1_a_poison_takes_its_own_cell_along_and_no_other(three_cells: Court, pool: str) -> None:
    court = three_cells
    innocent = [court.suspect("trial.waits", n) for n in range(2)]
    poison = court.suspect("trial.dies", "kill-parents-group")
    with court.worker(pool=pool, concurrency=4) as worker:
        court.await_that(court.quarantine.list, "convicted")
        court.await_start("waits", 2)
        court.marks.repair()
        assert {suspect.get(timeout=PATIENCE) for suspect in innocent} == {"repaired"}
        court.await_acquittal()
        assert worker.is_alive()
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.cause, kept.strikes) == (poison.id, "signal:9", 2)
    assert set(court.marks.count("waits", "start").values()) == {1}


@EVERY_POOL
def test_NEW_1_a_cell_that_ends_before_it_begins_is_had_again_though_another_goes_on(
    three_cells: Court, tmp_path: Path, pool: str
) -> None:
    court, ready = three_cells, tmp_path / "ready"
    ready.touch()
    waits = court.suspect("trial.waits")
    with court.worker(pool=pool, concurrency=4, env={BEGINS_WITH: str(ready)}) as worker:
        court.await_start("waits")
        (first,) = court.watchers()
        ready.unlink()
        tells = court.suspect("trial.tells")
        court.await_that(lambda: len(court.watchers()) == 2, "its cell does not begin")
        (second,) = {*court.watchers()} - {first}
        os.kill(second, signal.SIGKILL)
        court.await_that(lambda: "is tried again, in a second" in worker.log_text(), "told")
        ready.touch()
        assert tells.get(timeout=PATIENCE)["in_cell"]
        court.marks.repair()
        assert waits.get(timeout=PATIENCE) == "repaired"
        court.await_acquittal()
        assert worker.log_text().count("cannot be tried in cells") == 0
    assert len(court.events("crashed")) == 2, "those by which they became suspects"
    assert set(court.marks.count("tells", "start").values()) == {1}


def test_NEW_1_all_who_were_on_trial_when_their_worker_was_killed_are_tried_again(three_cells: Court) -> None:
    court = three_cells
    suspects = [court.suspect("trial.waits", n) for n in range(3)]
    with court.worker(pool="threads", concurrency=4) as first:
        court.await_start("waits", 3)
        first.kill_main()
        first.wait()
    court.marks.repair()
    with court.worker("w2", pool="threads"):
        assert {suspect.get(timeout=PATIENCE) for suspect in suspects} == {"repaired"}
        court.await_acquittal()
    assert len(court.events("crashed")) == 3, "those by which they became suspects"
    assert not court.quarantine.list()


def test_NEW_1_of_suspects_side_by_side_exactly_the_revoked_one_is_ended(three_cells: Court) -> None:
    court = three_cells
    suspects = [court.suspect("trial.waits", n) for n in range(3)]
    with court.worker(concurrency=4):
        court.await_start("waits", 3)
        court.app.control.revoke(suspects[1].id, terminate=True)
        court.await_that(lambda: suspects[1].state == "REVOKED", "revoked")
        court.marks.repair()
        assert {each.get(timeout=PATIENCE) for each in (suspects[0], suspects[2])} == {"repaired"}
        court.await_acquittal()
    assert set(court.marks.count("waits", "start").values()) == {1}
