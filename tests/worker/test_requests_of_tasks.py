"""What a task may ask for, what it is told, and what an ordinary failure is not."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Task

from celery_poison.rules.blocks import RuleKind
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew

POOLS = pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "solo"]))


@pytest.mark.parametrize(
    ("pool", "broker_url"),
    sampled(
        [("prefork", "redis"), ("threads", "rabbitmq"), ("solo", "redis")],
        [("prefork", "rabbitmq"), ("threads", "redis"), ("solo", "rabbitmq")],
    ),
    indirect=["broker_url"],
)
def test_WAS_1_WAS_3_a_message_rolled_back_max_failures_times_is_quarantined(crew: Crew, pool: str) -> None:
    crew.send("asks", "rollback")
    with crew.worker(pool=pool):
        crew.await_that(crew.quarantine.list, "in quarantine")
        (kept,) = crew.quarantine.list()
        assert (kept.cause, kept.failures, kept.crashes) == ("failures", 3, 0)
        assert crew.starts("asks") == 3, "compared before it ran a fourth time"
        crew.await_that(crew.nothing_runs, "nothing left running")


def test_WAS_2_reject_with_requeue_counts_as_a_failure(crew: Crew) -> None:
    crew.send("asks", "reject")
    with crew.worker():
        crew.await_that(crew.quarantine.list, "in quarantine")
    (kept,) = crew.quarantine.list()
    assert (kept.cause, kept.failures, kept.strikes) == ("failures", 3, 0)


@POOLS
def test_WAS_1_a_task_sends_itself_to_quarantine_with_its_reason(crew: Crew, pool: str) -> None:
    crew.send("asks", "quarantine")
    with crew.worker(pool=pool):
        crew.await_that(crew.quarantine.list, "in quarantine")
    (kept,) = crew.quarantine.list()
    assert (kept.cause, kept.reason) == ("requested", "smells wrong")
    assert crew.starts("asks") == 1 and crew.no_strikes() is False
    assert not crew.events("crashed")


def test_WAS_1_a_discarded_message_is_gone_and_journalled(crew: Crew) -> None:
    crew.send("asks", "discard")
    with crew.worker():
        crew.await_that(lambda: crew.events("finished"), "journalled")
        crew.await_that(crew.nothing_runs, "forgotten")
    (entry,) = crew.events("finished")
    assert entry["outcome"] == "discarded"
    assert crew.no_strikes() and crew.starts("asks") == 1


def test_a_task_that_raises_is_not_poison(crew: Crew) -> None:
    result = crew.send("asks", "raise")
    with crew.worker():
        with pytest.raises(ValueError, match="an ordinary bug"):
            result.get(timeout=PATIENCE)
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.no_strikes()


def test_celerys_own_retry_stays_as_it_is(crew: Crew) -> None:
    result = crew.send("asks", "retry-once")
    with crew.worker():
        assert result.get(timeout=PATIENCE) == [1, 0, 0, False, False, False]
        crew.await_that(crew.nothing_runs, "forgotten")
    # Two processes of the pool ended them: who writes first is open.
    assert sorted(entry["outcome"] for entry in crew.events("finished")) == ["retry", "success"]
    assert len({entry["mid"] for entry in crew.events("finished")}) == 2, "a retry is a message of its own"


def test_EMS_7_a_task_sees_its_deliveries_crashes_and_failures(crew: Crew) -> None:
    result = crew.send("asks", "rollback-once")
    with crew.worker():
        # deliveries, crashes, failures, redelivered, candidate, on_trial
        assert result.get(timeout=PATIENCE) == [2, 0, 1, True, False, False]
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.quarantine.queries.lineage(result.id) is None, "success leaves no record"


@pytest.mark.parametrize("worker", [False, True], ids=["its process died", "its worker died"])
def test_EMS_7_a_task_sees_on_its_second_delivery_that_it_crashed_on_the_first(
    crew: Crew, worker: bool
) -> None:
    result = crew.app.tasks["fleet.dies_once"].delay(worker=worker)
    with crew.supervise():
        # deliveries, crashes, failures, redelivered, candidate, on_trial
        assert result.get(timeout=PATIENCE) == [2, 1, 0, True, True, True]
        crew.await_that(crew.nothing_runs, "nothing left running")
    (crashed,) = crew.events("crashed")
    assert crashed["crashes"] == "1"
    assert [mark.n for mark in crew.marks.all("dies_once", "why")] == [crashed["cause"]], "it can read why"
    assert not crew.quarantine.list() and not crew.quarantine.list(candidates=True), "cleared by its success"


def test_a_loss_after_success_was_stored_adds_nothing(crew: Crew) -> None:
    result = crew.send("succeeds_then_dies")
    with crew.worker():
        crew.await_that(lambda: result.state == "SUCCESS", "stored")
        crew.await_that(lambda: "had finished before its process was lost" in crew.log_text(), "noticed")
    assert crew.starts("succeeds_then_dies") == 1
    assert crew.no_strikes()


def test_celerys_retry_on_worker_lost_is_respected_and_its_crashes_still_count(crew: Crew) -> None:
    crew.send("retried_when_lost")
    with crew.worker():
        crew.await_that(crew.quarantine.list, "in quarantine")
    (kept,) = crew.quarantine.list()
    assert kept.crashes == 3
    retries = [mark.n for mark in crew.marks.all("retried_when_lost", "start")]
    # Celery before 5.7 knows no such option: there it is put back, as any other.
    expected = [0, 1, 2] if hasattr(Task, "retry_on_worker_lost") else [0, 0, 0]
    assert retries == expected, "each run was a retry of Celery's, with its own number"


def test_under_guard_all_an_early_acknowledged_task_is_observed_and_not_diverted(
    new_crew: Any, redis_url: str
) -> None:
    crew: Crew = new_crew(redis_url, poison_guard_all=True)
    crew.send("early")
    with crew.worker():
        crew.await_that(lambda: crew.events("crashed"), "journalled")
        crew.await_that(crew.nothing_runs, "forgotten")
    (entry,) = crew.events("crashed")
    assert (entry["cause"], entry["note"]) == ("signal:9", "observed")
    assert crew.starts("early") == 1
    assert not crew.quarantine.list() and not crew.quarantine.list(candidates=True)


def test_an_unguarded_task_is_neither_recorded_nor_touched(crew: Crew) -> None:
    unguarded, guarded = crew.send("told"), crew.send("healthy", 1)
    with crew.worker():
        unguarded.get(timeout=PATIENCE)
        guarded.get(timeout=PATIENCE)
        crew.await_that(lambda: crew.events("finished"), "journalled")
    assert {entry["task"] for entry in crew.events("finished")} == {"fleet.healthy"}


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_NEW_6_what_was_released_is_acknowledged_late_and_its_death_takes_it_back(
    new_crew: Any, broker_url: str
) -> None:
    """Celery acknowledges `early` before it runs: a released message of it would be gone with its death."""
    crew: Crew = new_crew(broker_url, poison_guard_all=True)
    crew.quarantine.block_task("fleet.early", actor="ann")
    with crew.worker() as worker:
        worker.wait_ready()
        sent = crew.send("early")
        crew.await_that(crew.quarantine.list, "in quarantine")
        crew.quarantine.unblock(RuleKind.TASK, "fleet.early")
        assert all(outcome.done for outcome in crew.quarantine.release([sent.id], actor="ann"))
        crew.await_that(lambda: [each.cause for each in crew.quarantine.list()] == ["signal:9"], "back again")
        crew.await_that(crew.nothing_runs, "forgotten")
        assert crew.quarantine.list()[0].id == sent.id
        crew.marks.repair()
        assert all(outcome.done for outcome in crew.quarantine.release([sent.id], actor="ann"))
        assert sent.get(timeout=PATIENCE) == "repaired"
    assert not crew.quarantine.list()
