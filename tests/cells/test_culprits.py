"""NEW-1: the culprit proven, the bystanders cleared, and no second worker lost for it."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet
from tests.cells.conftest import Court, every_pool_and_broker

BYSTANDERS = 7


@every_pool_and_broker(("prefork", "redis"))
def test_NEW_1_a_poison_costs_one_worker_and_those_who_ran_beside_it_are_cleared(
    new_fleet: Callable[..., Fleet], broker_url: str, pool: str
) -> None:
    fleet = new_fleet(broker_url)
    innocents = [fleet.send("slow", 1.0) for _ in range(BYSTANDERS)]
    poison = fleet.send("kill_main")
    # A solo worker runs one at a time: there they are behind it, and not beside it.
    with fleet.supervise(1, pool, 1 if pool == "solo" else BYSTANDERS + 1) as supervisor:
        wait_until(
            lambda: fleet.quarantine.list() and not _suspects(fleet) and _ended(fleet, BYSTANDERS),
            what=lambda: f"one convicted, the others cleared\n{fleet.log_text()[-5000:]}",
        )
        assert [innocent.get(timeout=PATIENCE) for innocent in innocents] == [1.0] * BYSTANDERS
        deaths = len(supervisor.deaths)
    (kept,) = fleet.quarantine.list()
    assert (kept.id, kept.crashes, kept.strikes, kept.cause) == (poison.id, 2, 2, "signal:9")
    assert deaths == 1, "only the death that made it a suspect"
    assert len(fleet.marks.all("kill_main", "start")) == 2


def _suspects(fleet: Fleet) -> list[Any]:
    return [record for record in fleet.quarantine.list(candidates=True) if record.state != "NDLV"]


def _ended(fleet: Fleet, count: int) -> bool:
    return len({mark.id for mark in fleet.marks.all("slow", "end")}) == count


WAYS = {
    "kill-parent": "signal:9",
    "kill-parents-group": "signal:9",
    "kill-session": "signal:9",
    "close-everything": "signal:9",
    "sigkill": "signal:9",
    "segfault": "signal:11",
    "abort": "signal:6",
    "os-exit": "exit:7",
    "exit": "system_exit",
    "memory-error": "memory_error",
}


_ALWAYS = [("kill-parents-group", "prefork"), ("close-everything", "prefork")]
_OTHERS = [cell for cell in itertools.product(WAYS, ["prefork", "threads"]) if cell not in _ALWAYS]


@pytest.mark.parametrize(("way", "pool"), sampled(_ALWAYS, _OTHERS))
def test_NEW_1_nothing_that_a_suspect_does_to_its_surroundings_reaches_the_worker(
    court: Court, way: str, pool: str
) -> None:
    poison = court.suspect("trial.dies", way)
    with court.worker(pool=pool) as worker:
        court.await_that(court.quarantine.list, "convicted")
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"], "another cell serves the next"
        assert worker.is_alive()
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.cause, kept.strikes) == (poison.id, WAYS[way], 2)
    assert len(court.marks.all("dies", "start")) == 1


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "gevent"]))
def test_NEW_1_a_process_that_a_suspect_leaves_behind_keeps_nothing_waiting(court: Court, pool: str) -> None:
    """It holds all that the cell had open, and outlives it in a session of its own."""
    suspect = court.suspect("trial.dies", "forks-and-leaves")
    with court.worker(pool=pool) as worker:
        assert suspect.get(timeout=PATIENCE) is None
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"]
        court.await_acquittal()
        court.await_that(lambda: not court.watchers(), "no cell is left")
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        assert court.survivors(), "what it has left"
    court.marks.repair()
    court.await_that(lambda: not court.survivors(), "nobody is left")
    assert not court.quarantine.list()


@pytest.mark.matrix
def test_NEW_1_a_poison_that_ends_its_worker_out_of_its_cell_is_convicted_and_nobody_else(
    court: Court,
) -> None:
    """By its pid, as a program does that reads a pid file."""
    innocents = [court.suspect("trial.sleeps", 0.5) for _ in range(3)]
    poison = court.suspect("trial.dies", "kill-worker")
    with court.supervise(1, "prefork", 4):
        wait_until(court.quarantine.list, 3 * PATIENCE, what=lambda: court.log_text()[-3000:])
        assert all(innocent.get(timeout=PATIENCE) is None for innocent in innocents)
    (kept,) = court.quarantine.list()
    assert kept.id == poison.id


def test_NEW_2_a_suspect_that_eats_its_memory_is_stopped_and_the_cause_is_told(
    new_court: Any, redis_url: str
) -> None:
    court: Court = new_court(redis_url, poison_trial_memory_limit=200 << 20)
    court.suspect("trial.dies", "eat-memory")
    with court.worker():
        court.await_that(court.quarantine.list, "convicted")
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"]
    (kept,) = court.quarantine.list()
    assert kept.cause == "oom"
    assert (kept.evidence.limit_kb, kept.evidence.limit_of) == ((200 << 20) >> 10, "trial")


def test_NEW_1_only_a_death_alone_convicts_however_many_were_shared(court: Court) -> None:
    """With the counting rule the third worker that dies for others' sake would convict it."""
    innocent = court.suspect("trial.tells")
    for number in range(3):
        _die_beside_others(court, innocent.id, number)
    with court.worker():
        assert innocent.get(timeout=PATIENCE)["on_trial"]
        court.await_acquittal()
    assert not court.quarantine.list()


def _die_beside_others(court: Court, id: str, number: int) -> None:
    from celery_poison.model import Start

    start = Start("R", f"d{number}.1", "w0@test/dead", 1, 1, 1, 0, id, "trial.tells", "celery", 2, 5, 10, 1)
    court.ledger.messages.crash(f"m{number}", start, cause="worker_lost", shared=True)


def test_NEW_6_a_released_message_is_tried_first(court: Court) -> None:
    poison = court.suspect("trial.dies", "exit")
    with court.worker() as worker:
        court.await_that(court.quarantine.list, "convicted")
        court.quarantine.release([poison.id], actor="ann")
        court.await_that(lambda: len(court.marks.all("dies", "start")) == 2, "released")
        court.await_that(court.quarantine.list, "convicted by one death")
        assert worker.is_alive()
    assert len(court.events("crashed")) == 3, "one with its worker, one on trial, one on probation"


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_SAP_3_without_trials_two_shared_deaths_convict(
    new_fleet: Callable[..., Fleet], redis_url: str, pool: str
) -> None:
    fleet = new_fleet(redis_url, poison_trial="off")
    poison = fleet.send("kill_main")
    with fleet.supervise(1, pool, 2) as supervisor:
        wait_until(fleet.quarantine.list, what=lambda: fleet.log_text()[-3000:])
        assert len(supervisor.deaths) == 2
    (kept,) = fleet.quarantine.list()
    assert (kept.id, kept.cause) == (poison.id, "worker_lost")
