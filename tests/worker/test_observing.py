"""`poison_observe_only`: everything is judged and journalled, and Celery does what it would do without us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError

from celery_poison import Quarantine
from celery_poison.basics.text import command
from celery_poison.desk.survey import overview
from celery_poison.rules.blocks import RuleKind
from tests import PATIENCE, sampled
from tests.cli.conftest import Console
from tests.worker.conftest import Crew

OBSERVE: dict[str, Any] = {"poison_observe_only": True}
LATE = OBSERVE | {"task_acks_late": True, "task_reject_on_worker_lost": True}
BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
REDIS_FIRST = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


def _would(crew: Crew) -> list[tuple[str, str]]:
    return [(entry["task"], entry["cause"]) for entry in crew.events("would_quarantine")]


@REDIS_FIRST
def test_NEW_8_a_late_task_that_kills_goes_round_as_in_celery_and_is_told_once(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, **LATE)
    with crew.worker(concurrency=2) as worker:
        worker.wait_ready()
        poison, healthy = crew.send("kill_child", 7), crew.send("healthy", 1)
        crew.await_that(lambda: crew.starts("kill_child") >= 4, "it does not go round")
        (worst,) = overview(crew.app).observed
        assert (worst.id, worst.task, worst.cause) == (poison.id, "fleet.kill_child", "signal:9")
        crew.marks.repair()
        assert poison.get(timeout=PATIENCE) == "repaired"
        assert healthy.get(timeout=PATIENCE) == 1
        crew.await_that(crew.nothing_runs, "the ledger has not forgotten them")
        logged = [line.partition("would be quarantined: ")[2] for line in crew.log_text().splitlines()]
        deaths = [reason for reason in logged if reason]
        assert len(deaths) == len(set(deaths)) >= 2, "each death is logged once"
    assert _would(crew) == [("fleet.kill_child", "signal:9")]
    (told,) = crew.events("would_quarantine")
    assert (told["crashes"], told["strikes"], told["state"]) == ("2", "2", "")
    assert not crew.quarantine.list() and not crew.events("quarantined", "parked", "duplicate")
    seen = overview(crew.app)
    assert (seen.observe_only, seen.would_quarantine, seen.quarantined) == (True, {"signal:9": 1}, 0)


@BOTH
def test_NEW_8_an_early_task_stays_early_and_its_caller_hears_what_celery_says(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, **OBSERVE)
    with crew.worker() as worker:
        worker.wait_ready()
        with pytest.raises(WorkerLostError):
            crew.send("kill_child", 7).get(timeout=PATIENCE)
        assert crew.starts("kill_child") == 1
        crew.await_that(lambda: crew.events("crashed"), "it is not journalled")
        seen = overview(crew.app)
        told = (
            "observing: 1 death so far (SIGKILL, fleet.kill_child); guarded, it would be caught at its second"
        )
        assert seen.verdict[0] == told
        (died,) = crew.events("crashed")
        assert seen.next[0] == command(f"poison show {died['id'][:8]}")
        assert "1 start, 1 death" in Console(crew.app).out("show", died["id"])
        with pytest.raises(WorkerLostError):
            crew.send("segfault").get(timeout=PATIENCE)
        crew.await_that(lambda: len(crew.events("crashed")) == 2, "it is not journalled")
        told = overview(crew.app).verdict[0]
        assert told.startswith("observing: 2 deaths so far (the last: SIGSEGV, fleet.segfault, tasks.py:"), (
            told
        )
        assert crew.send("small", "x" * 5000).get(timeout=PATIENCE) == 5000, "nothing is too large"
        crew.await_that(lambda: _would(crew) == [("fleet.small", "payload")], "it is not told")
        with pytest.raises(MemoryError):
            crew.send("memory_error").get(timeout=PATIENCE)
    assert not crew.quarantine.list()


@BOTH
def test_NEW_8_what_is_put_back_too_often_goes_on_and_what_is_blocked_runs(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, **LATE)
    Quarantine(crew.app).block_task("fleet.healthy", actor="ann")
    with crew.worker() as worker:
        worker.wait_ready()
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        sent = crew.send("asks", "reject")
        crew.await_that(lambda: crew.starts("asks") >= 6, "it does not go round")
        crew.marks.repair()
        assert sent.get(timeout=PATIENCE)
    assert sorted(_would(crew)) == [("fleet.asks", "failures"), ("fleet.healthy", "blocked")]
    Quarantine(crew.app).unblock(RuleKind.TASK, "fleet.healthy")
    assert not crew.quarantine.list()


def test_NEW_8_a_whole_workers_death_is_judged_when_the_broker_delivers_again(
    new_crew: Callable[..., Crew], rabbit_url: str
) -> None:
    crew = new_crew(rabbit_url, **LATE)
    with crew.worker("watches", queues=["other"]) as monitor, crew.supervise():
        monitor.wait_ready()
        sent = crew.send("kill_main", 7)
        crew.await_that(lambda: _would(crew), "it is not judged")
        crew.marks.repair()
        assert sent.get(timeout=PATIENCE) == "repaired"
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "it is not cleared")
    assert _would(crew)[:1] == [("fleet.kill_main", "worker_lost")]
    assert not crew.quarantine.list()


def test_NEW_8_the_brokers_connection_is_celerys_own(new_crew: Callable[..., Crew], redis_url: str) -> None:
    crew = new_crew(redis_url, **LATE)
    with crew.worker() as worker:
        worker.wait_ready()
        crew.send("waits_for_repair", 1)
        crew.await_that(lambda: crew.starts("waits_for_repair"), "it does not run")
        ((_, start, _),) = crew.quarantine.queries.running()
        with crew.app.connection_for_read() as connection:
            tags = [tag.decode() for tag in connection.default_channel.client.hkeys("unacked")]
        boot = start.worker.rpartition("/")[2]
        assert tags and not any(boot in tag for tag in tags)
        crew.marks.repair()
        crew.await_that(lambda: crew.marks.count("waits_for_repair", "end") == {1: 1}, "it does not end")


@pytest.mark.parametrize("pool", sampled(["prefork"], ["solo", "threads"]))
def test_NEW_8_a_worker_that_only_observed_leaves_in_peace(
    new_crew: Callable[..., Crew], redis_url: str, pool: str
) -> None:
    crew = new_crew(redis_url, **OBSERVE)
    with crew.worker(pool=pool) as worker:
        worker.wait_ready()
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        assert worker.stop() == 0, worker.log_text()
        assert "Traceback" not in worker.log_text()
    assert not crew.quarantine.queries.workers(1000), "it has not said farewell"
