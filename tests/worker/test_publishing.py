"""What a task publishes leaves with its success, in order, and not at all if it fails (TP1-9, EMS-11)."""

from __future__ import annotations

from typing import Any

import pytest

from tests import PATIENCE, sampled
from tests.worker.conftest import Crew
from tests.worker.harbour import Harbour


def _boxes(what: str) -> list[str]:
    return [f"{what}:{n}" for n in range(3)]


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_TP1_9_what_is_published_leaves_with_the_success_once_and_in_order(
    new_crew: Any, broker_url: str
) -> None:
    crew: Crew = new_crew(broker_url, poison_on_rollback="fleet.alarm")
    ships = Harbour(crew)
    ends = ("raises", "group-raises", "quarantine")
    successes = ("group", "retries", "rolls back", "dies")
    with crew.worker(concurrency=3):
        waits = crew.send("packs", "waits")
        crew.await_that(lambda: crew.marks.all("packs", "packed"), "packed")
        results = {what: crew.send("packs", what) for what in (*ends, *successes)}
        for what in successes:
            assert results[what].get(timeout=PATIENCE) == what
        wanted = sorted(box for what in successes for box in _boxes(what))
        crew.await_that(lambda: sorted(ships.boxes()) == wanted, "nothing of what still runs has left")
        crew.marks.open_gate()
        assert waits.get(timeout=PATIENCE) == "waits"
        crew.await_that(lambda: len(ships.boxes()) > len(wanted), "left")
        crew.await_that(lambda: len(crew.marks.all("alarm", "start")) >= 5, "told")
        crew.await_that(crew.nothing_runs, "nothing left running")
    shipped = ships.boxes()
    assert sorted(shipped) == sorted([*wanted, *_boxes("waits")])
    for what in (*successes, "waits"):
        assert [box for box in shipped if box.startswith(what)] == _boxes(what)
    told: list[Any] = [mark.n for mark in crew.marks.all("alarm", "start")]
    assert {each["input"]["args"][0] for each in told} == {*ends, "rolls back", "dies"}
    for each in told:
        boxes = [unsent["args"][0] for unsent in each["unsent"]]
        assert boxes[:3] == _boxes(each["input"]["args"][0])
        assert (each["queue"], each["task"]) == ("ships", "fleet.ship")


def test_TP1_9_a_worker_that_dies_sends_nothing_and_whole_tasks_can_be_tied(
    new_crew: Any, broker_url: str
) -> None:
    crew: Crew = new_crew(broker_url)
    ships = Harbour(crew)
    with crew.supervise():
        died = crew.send("packs", "dies with its worker")
        assert died.get(timeout=PATIENCE) == "dies with its worker"
        for what in ("raises", "first", "first"):
            result = crew.send("packs_all", what)
            crew.await_that(result.ready, "ended")
        assert result.get() == "first", "the second of one key gives the first one's result"
        wanted = [*_boxes("dies with its worker"), "first:0"]
        crew.await_that(lambda: len(ships.boxes()) >= 4, "left")
        crew.await_that(crew.nothing_runs, "nothing left running")
    assert ships.boxes() == wanted


#: More than a run sends for its end: what is tied, two of its result, two of the end itself. After the last
#: nobody dies.
COMMANDS = 7
#: What was sent when it is stored, and what was answered by then.
SENT, STORED = 3, 4


@pytest.mark.parametrize("whole", sampled([""], [" with its worker"]))
def test_TP1_9_killed_after_any_command_of_its_end_all_leaves_once_if_it_succeeded_and_nothing_if_not(
    new_crew: Any, broker_url: str, whole: str
) -> None:
    crew: Crew = new_crew(broker_url, poison_on_rollback="fleet.alarm", poison_max_crashes=COMMANDS)
    with crew.supervise(concurrency=3):
        crew.send("packs", "first").get(timeout=PATIENCE)  # Redis knows the scripts from now on
        first, ships = Harbour(crew), Harbour(crew)
        crew.await_that(lambda: first.boxes() == _boxes("first"), "left")
        results = {}
        for what in (f"dies after {number}{whole}" for number in range(COMMANDS)):
            results[what] = crew.send("packs", what)
            if whole:  # else its worker takes others along
                crew.await_that(results[what].ready, "ended")
        crew.await_that(lambda: all(result.ready() for result in results.values()), "ended")
        crew.await_that(crew.nothing_runs, "nothing left running")
        succeeded = [what for what, result in results.items() if result.state == "SUCCESS"]
        wanted = [box for what in succeeded for box in _boxes(what)]
        crew.await_that(lambda: len(ships.boxes()) >= len(wanted), "left")
    shipped = sorted(ships.boxes(), key=lambda box: [*results].index(box.rpartition(":")[0]))
    assert shipped == wanted, "all of what succeeded, once and in order, and nothing else"
    numbers = {int(what.split()[2]) for what in succeeded}
    assert {*range(STORED, COMMANDS)} <= numbers <= {*range(SENT, COMMANDS)}, "those whose result was stored"
    assert crew.starts("packs") == 1 + 2 * COMMANDS - len(succeeded)
