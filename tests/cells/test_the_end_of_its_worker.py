"""What becomes of a trial when its worker ends, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.rules.doubts import PROOF, SHARED_DOUBTS, WHOLE
from tests import PATIENCE, sampled
from tests.cells.conftest import Court, every_pool_and_broker


@every_pool_and_broker(("prefork", "redis"), ("gevent", "redis"), ("threads", "rabbitmq"))
def test_a_warm_shutdown_waits_for_the_trial(court: Court, pool: str) -> None:
    suspect = court.suspect("trial.waits")
    with court.worker(pool=pool) as worker:
        court.await_start("waits")
        worker.send_signal(signal.SIGTERM)
        court.await_that(lambda: "Warm shutdown" in worker.log_text(), "shutting down")
        assert court.on_trial()
        court.marks.repair()
        worker.wait()
    assert suspect.get(timeout=PATIENCE) == "repaired"
    assert not court.survivors()
    with court.worker("w2"):
        assert court.app.tasks["trial.tells"].delay().get(timeout=PATIENCE)
        court.await_acquittal()
    assert len(court.marks.all("waits", "start")) == 1, "it was acknowledged"


def test_a_service_manager_that_signals_every_process_of_the_service_ends_no_trial(court: Court) -> None:
    suspect = court.suspect("trial.waits")
    with court.worker(pool="threads") as worker:
        court.await_start("waits")
        for pid in court.survivors():
            os.kill(pid, signal.SIGTERM)
        court.await_that(lambda: "Warm shutdown" in worker.log_text(), "shutting down")
        court.marks.repair()
        worker.wait()
    assert suspect.get(timeout=PATIENCE) == "repaired"


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_a_cold_shutdown_ends_the_trial_and_convicts_nobody(court: Court, pool: str) -> None:
    suspect = court.suspect("trial.waits")
    with court.worker(pool=pool) as worker:
        court.await_start("waits")
        worker.quit()
        worker.wait()
    assert not court.survivors()
    court.marks.repair()
    with court.worker("w2", pool=pool):
        assert suspect.get(timeout=PATIENCE) == "repaired"
        court.await_acquittal()
    assert len(court.events("crashed")) == 1, "the one by which it became a suspect"


@every_pool_and_broker(("prefork", "rabbitmq"))
def test_NEW_1_a_suspect_whose_worker_is_killed_from_outside_is_tried_again(court: Court, pool: str) -> None:
    suspect = court.suspect("trial.waits")
    with court.worker(pool=pool) as first:
        court.await_start("waits")
        first.kill_main()
        first.wait()
        court.await_that(lambda: not court.watchers(), "watcher and cell end with their worker")
    with court.worker("w2", pool=pool):
        court.await_start("waits", 2)
        (start,) = court.on_trial()
        assert court.quarantine.queries.history(suspect.id).doubt == WHOLE, "nothing ran beside it"
        assert start.alone == 2, "in a cell again, and others may run beside it"
        other = court.app.tasks["trial.tells"].delay()
        court.marks.repair()
        assert suspect.get(timeout=PATIENCE) == "repaired"
        assert other.get(timeout=PATIENCE)
        court.await_acquittal()
    assert len(court.events("crashed")) == 1, "the one by which it became a suspect"
    assert not court.quarantine.list()


def test_NEW_1_a_doubt_that_two_on_trial_share_weighs_half(
    new_court: Callable[..., Court], redis_url: str
) -> None:
    court = new_court(redis_url, poison_trial_cells=2)
    suspects = [court.suspect("trial.waits", n) for n in range(2)]
    with court.worker(concurrency=2) as first:
        court.await_start("waits", 2)
        first.kill_main()
        first.wait()
    with court.worker("w2", concurrency=2):
        court.await_start("waits", 4)
        doubts = [court.quarantine.queries.history(suspect.id).doubt for suspect in suspects]
        assert doubts == [WHOLE // 2] * 2
        court.marks.repair()
        court.await_acquittal()
    assert not court.quarantine.list()


@pytest.mark.matrix
def test_NEW_1_whoever_ends_one_idle_worker_after_the_other_is_convicted(court: Court) -> None:
    """A poison that gets at its worker even out of its cell. Until then it may have been chance.

    Nothing here is put on record by the test: the first worker dies of an ordinary run, the others
    beside a cell and nothing else.
    """
    poison = court.app.tasks["trial.waits"].delay()
    for number in range(1 + PROOF):
        with court.worker(f"w{number}", pool="threads") as worker:
            court.await_start("waits", number + 1)
            assert not court.quarantine.list()
            worker.kill_main()
            worker.wait()
    with court.worker("w9", pool="threads"):
        court.await_that(court.quarantine.list, "convicted")
    (kept,) = court.quarantine.list()
    assert (kept.id, kept.cause, kept.strikes) == (poison.id, "worker_lost", 2)
    tried = [entry["worker"].partition("@")[0] for entry in court.events("crashed")]
    assert tried == ["w0", f"w{PROOF}"], "the first death, shared, and the last one, which is the proof"


def test_NEW_1_a_suspect_that_must_be_alone_does_not_wait_for_all_the_others(
    new_court: Callable[..., Court], redis_url: str
) -> None:
    """They would keep their worker's pool empty-handed for as long as there are suspects."""
    court = new_court(redis_url, poison_trial_cells=1)
    alone = court.suspect("trial.waits", 0, doubts=SHARED_DOUBTS - 1)
    with court.worker(pool="threads") as first:
        court.await_start("waits")
        first.kill_main()
        first.wait()
    court.suspect("trial.waits", 1)
    others = [court.suspect("trial.tells", n) for n in range(3)]
    with court.worker("w2", pool="threads") as second:
        court.await_start("waits", 2)
        court.await_that(lambda: f"[{alone.id}] received" in second.log_text(), "put back and received")
        court.marks.repair()
        assert all(other.get(timeout=PATIENCE)["in_cell"] for other in others)
        court.await_acquittal()
    starts = [(mark.task, mark.n) for mark in court.marks.all(event="start")]
    assert starts[:3] == [("waits", 0), ("waits", 1), ("waits", 0)], starts


def test_a_suspect_that_must_be_alone_keeps_its_credit_and_others_go_to_other_workers(
    new_court: Callable[..., Court], redis_url: str
) -> None:
    court = new_court(redis_url, worker_prefetch_multiplier=1)
    court.suspect("trial.waits", doubts=SHARED_DOUBTS)
    with court.worker(pool="threads", concurrency=1):
        court.await_start("waits")
        other = court.app.tasks["trial.tells"].delay()
        with court.worker("w2", pool="threads", concurrency=1):
            assert other.get(timeout=PATIENCE)["in_cell"] is False
            court.marks.repair()
            court.await_acquittal()


def test_nothing_is_left_behind_by_a_worker_that_had_a_suspect(court: Court) -> None:
    with court.worker() as worker:
        court.suspect("trial.tells").get(timeout=PATIENCE)
        assert court.nurseries()
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    assert not court.survivors()


def test_a_broker_connection_that_is_lost_drops_suspects_that_wait_and_no_trial(
    new_court: Any, rabbit_url: str, rabbit_server: Any
) -> None:
    court: Court = new_court(rabbit_url)
    running = court.suspect("trial.waits", 0)
    waiting = [court.suspect("trial.tells", n) for n in range(3)]
    with court.worker():
        court.await_start("waits")
        connected = court.log_text().count("Connected to amqp")
        rabbit_server.ctl("close_all_connections", "--vhost", rabbit_url.rpartition("/")[2], "test")
        court.await_that(lambda: court.log_text().count("Connected to amqp") > connected, "connected again")
        court.marks.repair()
        assert running.get(timeout=PATIENCE) == "repaired"
        assert all(suspect.get(timeout=PATIENCE)["in_cell"] for suspect in waiting)
        court.await_acquittal()
    assert len(court.marks.all("waits", "start")) == 1
    assert all(count == 1 for count in court.marks.count("tells", "start").values())
