"""What Flower sees: the states of guarded tasks, told by live workers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from celery_poison.plugin import plugin_of
from tests.apps.events import Watcher
from tests.worker.conftest import Crew


@pytest.fixture
def watcher(crew: Crew) -> Iterator[Watcher]:
    watcher = Watcher(crew.app)
    yield watcher
    watcher.stop()


def test_a_quarantined_task_shows_QUARANTINED_and_a_decision_changes_what_is_shown(
    crew: Crew, watcher: Watcher
) -> None:
    with crew.worker(args=["-E"]) as worker:
        crew.await_that(lambda: watcher.state.workers, "the worker is seen")
        result = crew.send("kill_child")
        crew.await_that(
            lambda: watcher.of(result.id) and watcher.of(result.id).state == "QUARANTINED", "shown"
        )
        shown = watcher.of(result.id)
        assert "SIGKILL" in shown.exception and "SIGKILL" in shown.result
        assert f"/poison/task/{result.id}" in shown.exception
        (kept,) = crew.quarantine.list()
        crew.marks.repair()
        crew.quarantine.release([kept.mid])
        crew.await_that(lambda: watcher.of(result.id).state == "SUCCESS", "released and done")
        assert set(watcher.state.workers) == {worker.hostname}, "no phantom worker"


def test_what_was_decided_while_no_worker_lived_is_shown_when_the_next_one_does(
    crew: Crew, watcher: Watcher
) -> None:
    with crew.worker(args=["-E"]):
        results = [crew.send("kill_child") for _ in range(3)]
        for result in results:
            crew.await_that(partial(watcher.shows, result.id, "QUARANTINED"), "shown")
    failed, discarded, released = results
    crew.quarantine.fail([failed.id])
    crew.quarantine.discard([discarded.id])
    crew.marks.repair()
    crew.quarantine.release([released.id])
    assert {watcher.of(result.id).state for result in results} == {"QUARANTINED"}
    with crew.worker(args=["-E"]) as worker:
        crew.await_that(partial(watcher.shows, failed.id, "FAILURE"), "failed")
        crew.await_that(partial(watcher.shows, discarded.id, "DISCARDED"), "discarded")
        crew.await_that(partial(watcher.shows, released.id, "SUCCESS"), "released and done")
        assert f"/poison/task/{failed.id}" in watcher.of(failed.id).exception
        assert not watcher.of(released.id).traceback
        assert set(watcher.state.workers) == {worker.hostname}, "no phantom worker"


def test_a_suspect_of_a_dead_worker_is_shown_as_waiting_again_by_the_worker_that_found_it(
    crew: Crew, watcher: Watcher
) -> None:
    with crew.worker("w1", args=["-E"]) as one, crew.worker("w2", args=["-E"]) as other:
        result = crew.send("kill_group")
        crew.await_that(partial(watcher.shows, result.id, "QUARANTINED"), "shown")
        heard = [event for event in watcher.events if event.get("uuid") == result.id]
        kinds = [event["type"] for event in heard]
        assert kinds.index("task-started") < kinds.index("task-retried") < kinds.index("task-quarantined")
        retried = heard[kinds.index("task-retried")]
        assert retried["hostname"] != heard[kinds.index("task-started")]["hostname"]
        assert f"/poison/task/{result.id}" in retried["exception"]
        assert not any("worker" in event for event in heard), "Flower's own field"
        assert set(watcher.state.workers) == {one.hostname, other.hostname}, "no phantom worker"


def test_a_failed_message_is_shown_as_failed(crew: Crew, watcher: Watcher) -> None:
    with crew.worker(args=["-E"]):
        crew.await_that(lambda: watcher.state.workers, "the worker is seen")
        result = crew.send("kill_child")
        crew.await_that(crew.quarantine.list, "in quarantine")
        (kept,) = crew.quarantine.list()
        crew.quarantine.fail([kept.mid])
        crew.await_that(lambda: watcher.of(result.id).state == "FAILURE", "shown as failed")
        # Exporters count the class that stands before the bracket.
        assert watcher.of(result.id).exception.startswith("GivenUp('celery_poison: ")


def test_NEW_1_the_fleet_gate_is_told_as_an_event_when_it_closes_and_when_its_time_is_over(
    new_crew: Callable[..., Crew], redis_url: str
) -> None:
    crew = new_crew(
        redis_url,
        poison_heartbeat_interval=0.5,
        poison_activation_interval=2.0,
        poison_fleet_gate_workers=2,
        poison_fleet_gate_share=0.1,
        poison_fleet_gate_window=1.0,
    )
    ledger, watcher = plugin_of(crew.app).open_ledger(), Watcher(crew.app)
    with crew.worker(args=["-E"]) as worker:
        worker.wait_ready()
        for n in range(2):  # nobody keeps them alive
            ledger.fleet.beat(f"gone{n}@test/b", {"node": f"gone{n}@test"}, first=True)
        crew.await_that(lambda: watcher.told("poison-gate-lifted"), "closed, and lifted again")
    watcher.stop()
    (closed,) = watcher.told("poison-gate-closed")
    assert (closed["deaths"], closed["fleet"]) == (2, 3)
