"""One poison in front of a hundred healthy tasks.

A few cells run in the ordinary test command, all of them with `tox -e matrix`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.testing import Supervisor, wait_until
from tests.apps.harness import Fleet
from tests.matrix.cells import CELLS, DIAGONAL, Cell

HEALTHY = 100
MAX_CRASHES = 2

#: What conftest calls the URL of each broker.
BROKER_FIXTURES = {"redis": "redis_url", "rabbitmq": "rabbit_url"}


def _params() -> list[Any]:
    return [
        pytest.param(
            cell, id=str(cell), marks=pytest.mark.diagonal if cell in DIAGONAL else pytest.mark.matrix
        )
        for cell in CELLS
    ]


@pytest.mark.parametrize("cell", _params())
def test_SAP_3_SAP_4_a_poison_is_quarantined_after_two_crashes_and_all_behind_it_finish(
    cell: Cell, new_fleet: Callable[..., Fleet], request: pytest.FixtureRequest
) -> None:
    fleet = new_fleet(request.getfixturevalue(BROKER_FIXTURES[cell.broker]))
    poison = cell.send_poison(fleet)
    for n in range(HEALTHY):
        fleet.send("healthy", n)

    with fleet.supervise(cell.workers, cell.pool, cell.slots, defaults=True) as supervisor:
        wait_until(lambda: _is_over(fleet), what=lambda: _story(fleet, supervisor))
        # The ledger may hear of the last death before the supervisor does.
        wait_until(lambda: len(supervisor.deaths) >= min(cell.worker_deaths))
        deaths = len(supervisor.deaths)

    _assert_the_poison_was_caught(cell, fleet, poison.id)
    assert deaths in cell.worker_deaths, _story(fleet, supervisor)
    _assert_every_healthy_task_was_done(cell, fleet, deaths)


def _is_over(fleet: Fleet) -> bool:
    finished = len(fleet.marks.count("healthy", "end"))
    return finished == HEALTHY and bool(fleet.quarantine.list()) and not _candidates(fleet)


def _assert_the_poison_was_caught(cell: Cell, fleet: Fleet, poison_id: str) -> None:
    (kept,) = fleet.quarantine.list()
    assert kept.id == poison_id
    assert kept.state == "NDLV"
    assert kept.cause in cell.causes, kept
    # A hard limit that puts its message back kills the pool process: a crash, and a failure as well.
    failures = MAX_CRASHES if cell.way == "hard_limit" else 0
    assert (kept.crashes, kept.failures) == (MAX_CRASHES, failures), kept
    assert not _candidates(fleet)
    # "receive" dies before the task can leave a mark.
    runs = len(fleet.marks.all(cell.task, "start"))
    assert runs == (0 if cell.way == "receive" else MAX_CRASHES)


def _assert_every_healthy_task_was_done(cell: Cell, fleet: Fleet, deaths: int) -> None:
    ended = fleet.marks.count("healthy", "end")
    assert set(ended) == set(range(HEALTHY))
    # Who was running when a whole worker died runs again, nobody else: none where only a child died.
    again = sum(fleet.marks.count("healthy", "start").values()) - HEALTHY
    assert again <= deaths * cell.slots, f"{again} healthy tasks ran again after {deaths} deaths"


def _candidates(fleet: Fleet) -> list[Any]:
    return [record for record in fleet.quarantine.list(candidates=True) if record.state != "NDLV"]


def _story(fleet: Fleet, supervisor: Supervisor) -> str:
    starts = {mark.task for mark in fleet.marks.all()}
    counts = {task: len(fleet.marks.all(task, "start")) for task in sorted(starts)}
    return (
        f"over: one poison kept, {HEALTHY} healthy done, no candidates\n"
        f"starts {counts}, healthy done {len(fleet.marks.count('healthy', 'end'))}\n"
        f"quarantine {fleet.quarantine.list()}\ncandidates {_candidates(fleet)}\n"
        f"worker deaths {supervisor.deaths}\n{_telling(fleet.log_text())[-6000:]}"
    )


def _telling(log: str) -> str:
    """A worker's log without the hundred tasks that went well and the hello of each of its lives."""
    lines = (line for line in log.splitlines() if line.startswith(("[20", "---", "  File", "    ")))
    return "\n".join(line for line in lines if "fleet.healthy" not in line and "----" not in line)
