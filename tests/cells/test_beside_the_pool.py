"""A trial goes on beside the worker's ordinary work, and has the same ends as a run in the pool."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import TimeLimitExceeded

from celery_poison.basics import procfs
from celery_poison.broker.kinds import depth
from celery_poison.plugin import marking
from celery_poison.worker.outcome import NEVER_RAN
from tests import PATIENCE, sampled
from tests.cells.conftest import Court

POOLS = pytest.mark.parametrize("pool", sampled(["prefork"], ["gevent", "threads", "solo", "eventlet"]))


@POOLS
def test_NEW_1_healthy_work_goes_on_while_suspects_are_tried_in_turn(
    new_court: Any, redis_url: str, pool: str
) -> None:
    court: Court = new_court(redis_url, poison_trial_cells=1)
    suspects = [court.suspect("trial.waits", n) for n in range(12)]
    with court.worker(pool=pool):
        court.await_start("waits")
        (start,) = court.on_trial()
        assert start.alone == 2
        others = [court.app.tasks["trial.tells"].delay(n) for n in range(20)]
        for other in others:
            told = other.get(timeout=PATIENCE)
            assert (told["in_cell"], told["on_trial"]) == (False, False)
        assert len(court.marks.all("waits", "start")) == 1, "the second waits for the first to end"
        court.marks.repair()
        assert {suspect.get(timeout=PATIENCE) for suspect in suspects} == {"repaired"}
        court.await_acquittal()
    assert not court.events("crashed")[12:]


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_1_a_suspect_knows_that_it_is_on_trial_and_all_ends_reach_their_caller(court: Court) -> None:
    with court.worker():
        told = court.suspect("trial.tells").get(timeout=PATIENCE)
        assert (told["in_cell"], told["on_trial"]) == (True, True)
        with pytest.raises(LookupError, match="an ordinary bug"):
            court.suspect("trial.ends", "raises").get(timeout=PATIENCE)
        assert court.suspect("trial.ends", "retries").get(timeout=PATIENCE) == "retries"
        assert court.suspect("trial.ends", "rolls-back").get(timeout=PATIENCE) == "rolls-back"
        court.await_acquittal()
    assert [event["event"] for event in court.events("rolled_back")] == ["rolled_back"]


@POOLS
def test_NEW_1_a_cell_lets_the_background_report_and_a_death_meanwhile_counts_for_nothing(
    new_court: Any, redis_url: str, pool: str
) -> None:
    court: Court = new_court(redis_url)
    with court.worker(pool=pool):
        pids = [
            court.suspect("trial.reports").get(timeout=PATIENCE),
            court.suspect("trial.reports", "more").get(timeout=PATIENCE),
        ]
        court.await_acquittal()
        court.await_that(lambda: not any(map(procfs.is_alive, pids)), "both have ended")
        assert not court.quarantine.list(candidates=True)
    reports = Counter({"daemon": 1, "thread": 1, "atexit": 1})
    assert court.marks.count("reports", "end") == reports
    assert court.marks.count("reports", "start").total() == 2


@pytest.mark.parametrize("pool", sampled(["gevent"], ["eventlet"]))
def test_NEW_1_a_full_pool_of_greenlets_keeps_no_trial_waiting_nor_its_end_from_the_record(
    new_court: Any, redis_url: str, pool: str
) -> None:
    """Where greenlets are full, whoever hands a message over waits for a free one."""
    court: Court = new_court(redis_url)
    with court.worker(pool=pool, concurrency=2):
        ids = [str(uuid4()) for _ in range(4)]
        for id in ids:
            with marking(id):  # looked up before it is let in
                court.app.tasks["trial.waits"].apply_async(task_id=id)
        court.await_start("waits", 2)
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"]
        court.await_acquittal()
        assert len(court.marks.all("waits", "start")) == 2, "the pool is full all the while"
        court.marks.repair()
        assert [court.app.AsyncResult(id).get(timeout=PATIENCE) for id in ids] == ["repaired"] * 4


@pytest.mark.parametrize("pool", sampled(["gevent"], ["eventlet"]))
def test_NEW_25_a_pool_of_greenlets_that_leaves_begins_nothing_that_waits_for_a_free_one(
    new_court: Any, redis_url: str, pool: str
) -> None:
    court: Court = new_court(redis_url)
    with court.worker(pool=pool, concurrency=2) as worker:
        for _ in range(6):
            with marking(id := str(uuid4())):
                court.app.tasks["trial.waits"].apply_async(task_id=id)
        court.await_start("waits", 2)
        court.await_that(lambda: worker.log_text().count("received") == 6, "all of them wait in the worker")
        worker.terminate()
        queries = court.quarantine.queries
        court.await_that(lambda: any(each.stopping for each in queries.workers(60_000)), "it leaves")
        court.marks.repair()
        assert worker.wait() == 0
    assert len(court.marks.all("waits", "start")) == 2
    assert not court.events("interrupted")
    with court.app.connection_for_read() as connection:
        assert depth(connection, "celery") == 4, "the others are back"


def test_NEW_26_a_trial_that_is_retried_or_replaced_before_the_work_clears_nobody(court: Court) -> None:
    guilty = {court.suspect("trial.ends", how).id for how in ("retries, then dies", "is replaced, then dies")}
    with court.worker():
        court.await_that(lambda: len(court.quarantine.list()) == 2, "convicted")
    kept = court.quarantine.list()
    assert ({message.id for message in kept}, {message.strikes for message in kept}) == (guilty, {2})
    assert len(court.events("crashed")) == 2 + 2, "each dies at its next trial"
    assert not court.events("cleared")


@pytest.mark.parametrize("pool", sampled(["prefork"], ["gevent", "eventlet"]))
def test_NEW_1_no_cell_is_used_twice_and_what_is_left_in_it_keeps_none(court: Court, pool: str) -> None:
    with court.worker(pool=pool):
        pids = [court.suspect("trial.tells").get(timeout=PATIENCE)["pid"] for _ in range(3)]
        pids += [court.suspect("trial.leaves_a_thread").get(timeout=PATIENCE)]
        assert len(set(pids)) == 4
        court.await_that(lambda: not any(map(procfs.is_alive, pids)), "all of them have ended")
        court.await_that(lambda: not court.watchers(), "and their watchers")


def test_a_soft_time_limit_is_raised_in_the_suspect(court: Court) -> None:
    with court.worker():
        suspect = court.suspect("trial.waits", soft_time_limit=0.5, time_limit=PATIENCE)
        assert suspect.get(timeout=PATIENCE) == "soft"


def test_a_hard_time_limit_ends_the_suspect_as_it_would_in_the_pool(court: Court) -> None:
    with court.worker(args=("--time-limit=1",)) as worker:
        with pytest.raises(TimeLimitExceeded):
            court.suspect("trial.waits").get(timeout=PATIENCE)
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"]
        court.await_acquittal()
        assert worker.is_alive()


def test_a_pool_that_ignores_time_limits_ignores_them_for_suspects_too(court: Court) -> None:
    with court.worker(pool="threads"):
        suspect = court.suspect("trial.waits", time_limit=0.3, soft_time_limit=0.2)
        court.await_start("waits")
        assert court.send("slow", 1.0).get(timeout=PATIENCE), "the limit would have come by now"
        court.marks.repair()
        assert suspect.get(timeout=PATIENCE) == "repaired"


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_a_suspect_on_trial_can_be_revoked(court: Court, pool: str) -> None:
    with court.worker(pool=pool) as worker:
        suspect = court.suspect("trial.waits")
        court.await_start("waits")
        court.app.control.revoke(suspect.id, terminate=True)
        court.await_that(lambda: suspect.state == "REVOKED", "revoked")
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"]
        assert worker.is_alive()
    assert len(court.events("crashed")) == 2, "those by which the two became suspects"


def test_a_suspect_that_is_revoked_while_it_waits_is_never_tried(new_court: Any, redis_url: str) -> None:
    court: Court = new_court(redis_url, poison_trial_cells=1)
    with court.worker():
        court.suspect("trial.waits")
        court.await_start("waits")
        revoked = court.suspect("trial.tells", 7)
        court.app.control.revoke(revoked.id)
        court.await_that(lambda: _knows(court, revoked.id), "told")
        court.marks.repair()
        court.await_that(lambda: revoked.state == "REVOKED", "revoked")
        court.await_acquittal()
    assert not court.marks.all("tells", "start")
    told = {entry["event"]: entry["note"] for entry in court.quarantine.history(revoked.id)}
    assert "cleared" not in told, "it has not survived"
    assert told["duplicate"] == NEVER_RAN


def _knows(court: Court, id: str) -> bool:
    revoked: Any = court.app.control.inspect(timeout=1).revoked() or {}
    return any(id in ids for ids in revoked.values())


def test_TP1_8_a_trial_longer_than_the_visibility_timeout_runs_once(new_court: Any, redis_url: str) -> None:
    court: Court = new_court(redis_url, broker_transport_options={"visibility_timeout": 2})
    suspect = court.suspect("trial.waits")
    with court.worker() as first, court.worker("w2") as second:
        court.await_start("waits")
        (start,) = court.on_trial()
        other = second if start.worker.startswith(first.hostname) else first
        assert court.ledger.client.exists(court.ledger.keys.child(start.worker, start.pid)), "its own lease"
        court.await_that(court.lives_on(other, 5), "longer than the timeout: the other had time to take it")
        court.marks.repair()
        assert suspect.get(timeout=PATIENCE) == "repaired"
        court.await_acquittal()
    assert len(court.marks.all("waits", "start")) == 1


def test_NEW_1_a_suspect_with_headers_that_cannot_be_read_keeps_no_other_waiting(court: Court) -> None:
    court.suspect("trial.tells", 1, headers={"stamps": {}, "stamped_headers": 5})
    with court.worker():
        assert court.suspect("trial.tells", 2).get(timeout=PATIENCE)["in_cell"]
        court.await_that(lambda: court.quarantine.list(), "a person decides about it")
    assert [record.cause for record in court.quarantine.list()] == ["malformed"]
