"""What a real worker does about poison that has another destination than quarantine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_poison.desk.survey import overview
from tests import PATIENCE, sampled
from tests.worker.conftest import Crew


def test_WAS_8_while_the_ledger_takes_nothing_poison_lies_on_disk_and_nobody_waits_for_it(
    new_crew: Any, redis_url: str, new_server: Any, tmp_path: Path
) -> None:
    spool, server, broker = tmp_path / "spool", new_server(), Redis.from_url(redis_url)
    crew: Crew = new_crew(redis_url, poison_redis_url=server.url(), poison_spool_directory=str(spool))
    with crew.worker(concurrency=1) as worker:
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        server.client().config_set("min-replicas-to-write", "1")
        kept = [crew.send("asks", "quarantine").id for _ in range(12)]  # more than are prefetched
        for number in range(1, 5):
            crew.send("healthy", number)
        crew.await_that(lambda: crew.done() == 5, "the healthy ones have run")
        crew.await_that(lambda: len([*spool.glob("*.json")]) == len(kept), "on disk")
        assert any("12 messages that quarantine could not take" in w for w in overview(crew.app).faults)
        crew.await_that(lambda: not broker.hlen("unacked"), "acknowledged")
        worker.kill_group()
        worker.wait()
    server.client().config_set("min-replicas-to-write", "0")
    assert not crew.quarantine.list()
    with crew.worker(name="w2"):
        crew.await_that(lambda: {r.id for r in crew.quarantine.list()} == {*kept}, "in quarantine")
        crew.await_that(lambda: not [*spool.iterdir()], "and not on disk any more")
    assert crew.starts("asks") == len(kept), "none ran twice"


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_WAS_8_a_worker_killed_between_disk_and_acknowledgement_leaves_the_message_in_quarantine_once(
    new_crew: Any, broker_url: str, new_server: Any, tmp_path: Path
) -> None:
    spool, server = tmp_path / "spool", new_server()
    crew: Crew = new_crew(broker_url, poison_redis_url=server.url(), poison_spool_directory=str(spool))
    crew.module = "tests.worker.dies_spooling"
    with crew.worker(concurrency=1) as worker:
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        server.client().config_set("min-replicas-to-write", "1")
        kept = crew.send("asks", "quarantine").id
        crew.await_that(lambda: crew.marks.count("spooling", "dies"), "killed")
        worker.wait()
    assert len([*spool.glob("*.json")]) == 1
    server.client().config_set("min-replicas-to-write", "0")
    with crew.worker(name="w2", concurrency=1):
        crew.await_that(lambda: not [*spool.iterdir()], "brought to quarantine")
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        running = crew.quarantine.queries.running
        crew.await_that(lambda: kept not in [start.id for _, start, _ in running()], "nor does its copy run")
        crew.await_that(lambda: [record.id for record in crew.quarantine.list()] == [kept], "there once")
    assert crew.starts("asks") <= 2, "the copy ran once more at most"


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_WAS_4_and_WAS_5_poison_goes_where_its_task_says_and_nobody_behind_it_waits(
    new_crew: Any, broker_url: str
) -> None:
    # RabbitMQ refuses whoever declares the new queue otherwise than its first worker, or the other way round.
    options = {"poison_exception_destination": {"*": "dead.letters"}, "task_queue_max_priority": 5}
    crew: Crew = new_crew(broker_url, **options)
    with crew.worker(pool="prefork", concurrency=1):
        dead = crew.send("os_exit")
        stays, waits = crew.send("stays"), crew.send("stays_for_ever")
        for number in range(5):
            crew.send("healthy", number)
        crew.await_that(lambda: crew.done() == 5, "the healthy ones have run")
        crew.await_that(lambda: crew.quarantine.get(dead.id).sent_at, "sent to its destination")
        # Convicted by its second death, and started again after each timeout: one death on probation.
        crew.await_that(lambda: crew.starts("stays") >= 4, "redelivered again and again")
        assert crew.starts("os_exit") == 2, "what is in another queue does not come back"
        (record,) = [record for record in crew.quarantine.list() if record.id == waits.id]
        assert record.retry_at is None and crew.starts("stays_for_ever") == 2, "it waits for a person"
        crew.marks.repair()
        assert crew.quarantine.release([record.mid], actor="ann")[0].done
        crew.await_that(lambda: crew.app.AsyncResult(waits.id).state == "SUCCESS", "it was released")
        crew.await_that(lambda: crew.app.AsyncResult(stays.id).state == "SUCCESS", "it has ended")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert [record.id for record in crew.quarantine.list()] == [dead.id]
    assert {entry["actor"] for entry in crew.events("released")} == {"celery_poison", "ann"}

    # Whoever consumes the queue runs what is in it.
    with crew.worker(name="w2", queues=("dead.letters",)):
        crew.await_that(lambda: crew.app.AsyncResult(dead.id).state == "SUCCESS", "it ran there")
        crew.await_that(lambda: not crew.quarantine.list(), "its row is gone")
