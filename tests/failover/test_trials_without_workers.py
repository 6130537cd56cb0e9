"""A fleet whose workers all died: ``celery poison monitor --trials`` tries the suspects (NEW-1)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.failover.crew import Watched
from tests.failover.standalone import MonitorProcess


def test_NEW_1_a_standby_clears_bystanders_and_convicts_the_poison_also_when_another_was_killed_midway(
    crew: Watched, entry_points: Path
) -> None:
    bystanders = crew.hold(3)
    with MonitorProcess(crew, entry_points, "first", "--trials") as first:
        first.await_active()
        with crew.worker(concurrency=4) as only:
            held = crew.await_held(only, 3)
            poison = crew.send("kill_main")
            healthy = [crew.send("healthy", n) for n in range(2)]
            crew.await_that(lambda: not only.is_alive(), "the poison has killed its worker")
        crew.await_that(lambda: len(crew.marks.all("holds", "start")) == 4, "a bystander is on trial")
        assert len(crew.quarantine.list(candidates=True)) == 4
        assert crew.left_behind()["unacked"] == 4, "the first standby has all suspects"
        with MonitorProcess(crew, entry_points, "second", "--trials") as second:
            _ = second.name  # it watches
            os.kill(first.pid, signal.SIGKILL)
            crew.await_that(lambda: len(crew.marks.all("holds", "start")) == 5, "on trial at the second")
            crew.let_go()
            crew.await_that(lambda: all(r.state == "SUCCESS" for r in bystanders), "bystanders are done")
            crew.await_that(crew.quarantine.list, "the poison is in quarantine")
            crew.await_that(lambda: not crew.quarantine.list(candidates=True), "nobody is suspected")
            assert crew.left_behind() == {"celery": 2}, "what had not begun waits for a worker"
            assert not any(result.ready() for result in healthy)
            assert second.end() == 0, second.log_text()
    assert held == {result.id for result in bystanders}
    (convict,) = crew.quarantine.list()
    assert (convict.id, convict.cause, convict.strikes) == (poison.id, "signal:9", 2)
    crashed = {entry["id"]: entry["outcome"] for entry in crew.events("crashed")}
    assert crashed == dict.fromkeys(held, "shared") | {poison.id: "exact"}
    assert len(crew.events("crashed")) == 5, "the killed standby is held against nobody"
    assert {entry["id"] for entry in crew.events("cleared")} == held
    assert not crew.marks.all("holds", "twice")


@pytest.mark.matrix
def test_NEW_1_a_standby_that_is_asked_to_leave_ends_its_trial_and_puts_back_the_suspects_that_wait(
    crew: Watched, entry_points: Path
) -> None:
    results = crew.hold(3)
    with MonitorProcess(crew, entry_points, "standby", "--trials") as standby:
        standby.await_active()
        with crew.worker(concurrency=3) as only:
            held = crew.await_held(only, 3)
            only.kill_group()
        crew.await_that(lambda: len(crew.marks.all("holds", "start")) == 4, "a bystander is on trial")
        os.kill(standby.pid, signal.SIGTERM)
        crew.await_that(lambda: crew.quarantine.queries.workers(60_000)[0].stopping, "it has heard it")
        crew.let_go()
        assert standby.wait() == 0, standby.log_text()
    assert crew.left_behind() == {"celery": 2, "candidates": 2}, "the others go back"
    assert [result.state for result in results].count("SUCCESS") == 1
    with crew.worker("w2"):
        crew.await_invariants(results, flagged=held)


@pytest.mark.matrix
@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_NEW_1_on_RabbitMQ_a_standby_says_that_it_can_try_nobody_and_watches(
    crew: Watched, entry_points: Path
) -> None:
    results = crew.hold(2)
    with MonitorProcess(crew, entry_points, "standby", "--trials") as standby:
        standby.await_active()
        assert "--trials has no effect: only with Redis" in standby.log_text()
        with crew.worker() as only:
            held = crew.await_held(only, 2)
            only.kill_group()
            crew.await_events("failover_finished")
        assert standby.end() == 0
    crew.let_go()
    with crew.worker("w2"):
        crew.await_invariants(results, flagged=held)
