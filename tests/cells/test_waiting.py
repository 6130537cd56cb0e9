"""What waits for a cell waits in the ledger: seen there, and tried by whichever worker is free (NEW-1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.basics import procfs
from celery_poison.desk.survey import overview
from tests import PATIENCE, sampled
from tests.cells.conftest import Court

SUSPECTS = 5


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_1_what_found_no_cell_is_tried_by_an_idle_worker_and_survives_the_death_of_the_full_one(
    new_court: Callable[..., Court], broker_url: str
) -> None:
    court = new_court(broker_url, poison_trial_cells=1)
    suspects = [court.suspect("trial.waits", n) for n in range(SUSPECTS)]
    with court.worker("w1", "threads", 4) as full:
        court.await_start("waits", 1)
        court.await_that(lambda: _parked(court) == SUSPECTS - 1, "the others wait in the ledger")
        court.await_that(lambda: not _room(court), "and its worker has told that it is full")
        places = sorted(record.reason for record in court.suspects())
        assert places[0].startswith(f"on trial on {full.hostname}/")
        assert all(place.startswith("parked on its way to its trial, since 2") for place in places[1:])
        seen = overview(court.app)
        assert (seen.on_trial, seen.parked, seen.stranded.total) == (1, SUSPECTS - 1, 0)
        assert court.app.tasks["trial.tells"].delay().get(timeout=PATIENCE), "its pool serves others"
        with court.worker("w2", "threads", 4):
            court.await_start("waits", 2)
            court.await_that(lambda: len({start.worker for start in court.on_trial()}) == 2, "on each one")
            court.await_that(lambda: _parked(court) == SUSPECTS - 2, "the others wait")
            cells = [mark.pid for mark in court.marks.all("waits", "start")]
            full.kill_main()
            full.wait()
            # Until its watcher has seen that the main process is gone, the cell of a dead worker runs on.
            court.await_that(lambda: sum(map(procfs.is_alive, cells)) == 1, "its cell goes with it")
            court.marks.repair()
            assert {suspect.get(timeout=PATIENCE) for suspect in suspects} == {"repaired"}
            court.await_acquittal()
    runs = court.marks.count("waits", "start")
    assert sorted(runs.values()) == [1] * (SUSPECTS - 1) + [2], "twice what was cut off, and nothing else"
    assert set(court.marks.count("waits", "end").values()) == {1}
    assert not court.quarantine.list() and not _parked(court)


def test_NEW_1_many_short_suspects_pass_through_one_cell_while_their_worker_does_other_work(
    new_court: Callable[..., Court], redis_url: str
) -> None:
    court = new_court(redis_url, poison_trial_cells=1)
    suspects = [court.suspect("trial.sleeps", 0.3) for _ in range(12)]
    with court.worker(concurrency=2):
        others = [court.app.tasks["trial.tells"].delay(n) for n in range(20)]
        assert not any(other.get(timeout=PATIENCE)["in_cell"] for other in others)
        assert {suspect.get(timeout=PATIENCE) for suspect in suspects} == {None}
        court.await_acquittal()
    assert sorted(mark.id for mark in court.marks.all("sleeps", "start")) == sorted(s.id for s in suspects)


def test_NEW_1_a_parked_suspect_can_be_given_up_at_once(
    new_court: Callable[..., Court], redis_url: str
) -> None:
    court = new_court(redis_url, poison_trial_cells=1)
    suspects = [court.suspect("trial.waits", n) for n in range(2)]
    with court.worker(concurrency=2):
        court.await_start("waits")
        court.await_that(lambda: _parked(court) == 1, "one waits in the ledger")
        (waiting,) = [each for each in court.suspects() if each.reason.startswith("parked")]
        (outcome,) = court.quarantine.discard([waiting.id], actor="ann")
        assert outcome.done
        court.marks.repair()
        (other,) = [each for each in suspects if each.id != waiting.id]
        assert other.get(timeout=PATIENCE) == "repaired"
        court.await_acquittal()
    assert len(court.marks.all("waits", "start")) == 1


def _parked(court: Court) -> int:
    return court.quarantine.queries.totals()["parked"]


def _room(court: Court) -> int:
    return sum(worker.room for worker in court.quarantine.queries.workers(1000))
