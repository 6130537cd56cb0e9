"""Deploys, recycling, revocation and lost connections: messages go on, and nobody gets a strike."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from celery_poison.broker.kinds import depth
from tests import PATIENCE, sampled
from tests.apps.tasks import KillsItsReader
from tests.worker.apps import build
from tests.worker.conftest import Crew

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
REDIS_FIRST = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


def _begun(crew: Crew, count: int = 1) -> None:
    crew.await_that(lambda: crew.starts("waits_for_repair") >= count, f"{count} tasks begun")


def _all_done_without_strikes(crew: Crew, count: int) -> None:
    crew.await_that(lambda: len(crew.marks.count("waits_for_repair", "end")) == count, "all done")
    crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.no_strikes(), crew.log_text()[-4000:]


@pytest.mark.parametrize(
    ("broker_url", "pool", "by_remote"),
    sampled(
        [("redis", "prefork", False), ("rabbitmq", "threads", False)],
        [("redis", "threads", True), ("rabbitmq", "prefork", True)],
    ),
    indirect=["broker_url"],
)
def test_NEW_2_a_warm_shutdown_adds_no_strike_and_what_has_not_begun_goes_back_at_once(
    new_crew: Any, broker_url: str, pool: str, by_remote: bool
) -> None:
    crew: Crew = new_crew(broker_url, worker_prefetch_multiplier=4)
    with crew.worker(pool=pool) as first:
        first.wait_ready()
        crew.send("gated", 0), crew.send("gated", 1)
        crew.await_that(lambda: crew.starts("gated") == 2, "its slots are taken")
        rest = [crew.send("healthy", n) for n in range(5)] + [crew.send("healthy", 5, countdown=3)]
        with crew.app.connection_for_read() as connection:
            crew.await_that(lambda: depth(connection, "celery") == 0, "prefetched")
        if by_remote:
            crew.app.control.shutdown(["w1@test"])
        else:
            first.send_signal(signal.SIGTERM)
        with crew.worker("w2", "threads"):
            assert [sent.get(timeout=PATIENCE) for sent in rest] == list(range(6))
            assert first.is_alive() and not crew.marks.all("gated", "end"), "its long tasks still run"
            crew.marks.open_gate()
            first.wait()
            crew.await_that(crew.nothing_runs, "forgotten")
    assert set(crew.marks.count("healthy", "start").values()) == {1}
    assert len(crew.marks.all("gated", "end")) == 2, "what had begun went on"
    assert crew.no_strikes(), crew.log_text()[-4000:]


@REDIS_FIRST
@pytest.mark.parametrize("soft", sampled([1], [0]))
def test_NEW_2_a_cold_or_soft_shutdown_interrupts_and_adds_no_strike(
    new_crew: Any, broker_url: str, soft: int
) -> None:
    settings = {"worker_soft_shutdown_timeout": soft} if soft else {}
    crew: Crew = new_crew(broker_url, **settings)
    for n in range(4):
        crew.send("waits_for_repair", n)
    with crew.worker() as first:
        _begun(crew, 2)
        first.quit()
        first.wait()
    assert crew.nothing_runs(), "the shutdown took its starts back"
    crew.marks.repair()
    with crew.worker("w2"):
        _all_done_without_strikes(crew, 4)


def test_NEW_2_a_worker_killed_during_its_shutdown_adds_no_strike(crew: Crew) -> None:
    crew.send("waits_for_repair", 1)
    with crew.worker() as first:
        _begun(crew)
        first.send_signal(signal.SIGTERM)
        crew.await_that(lambda: any(w.stopping for w in _workers(crew)), "tombstone written")
        first.kill_group()
        first.wait()
    crew.marks.repair()
    with crew.worker("w2"):
        _all_done_without_strikes(crew, 1)
    (interrupted,) = crew.events("interrupted")
    assert (interrupted["cause"], interrupted["failures"]) == ("eviction", "0")
    (incident,) = crew.quarantine.queries.incidents()
    assert incident.cause == "eviction"


def _workers(crew: Crew) -> list[Any]:
    return crew.quarantine.queries.workers(1000)


@pytest.mark.parametrize("limit", sampled(["--max-tasks-per-child=2"], ["--max-memory-per-child=1"]))
def test_NEW_2_recycling_of_pool_processes_adds_no_strike(crew: Crew, limit: str) -> None:
    with crew.worker(args=[limit]):
        for n in range(12):
            crew.send("healthy", n)
        crew.await_that(lambda: len(crew.marks.count("healthy", "end")) == 12, "all done")
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.no_strikes()


def test_NEW_2_a_task_that_is_revoked_while_it_runs_is_nobodys_crash(crew: Crew) -> None:
    result = crew.send("waits_for_repair", 1)
    with crew.worker():
        _begun(crew)
        result.revoke(terminate=True, signal="SIGKILL")
        crew.await_that(lambda: result.state == "REVOKED", "revoked")
        crew.await_that(crew.nothing_runs, "forgotten")
        after = crew.send("healthy", 1)
        assert after.get(timeout=PATIENCE) == 1
    assert crew.no_strikes()
    assert crew.starts("waits_for_repair") == 1


@BOTH
@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_TP1_8_a_lost_broker_connection_neither_runs_a_task_twice_nor_blames_it(
    crew: Crew, pool: str, request: pytest.FixtureRequest
) -> None:
    for n in range(2):
        crew.send("waits_for_repair", n)
    with crew.worker(pool=pool):
        _begun(crew, 2)
        _cut_broker_connections(crew, request)
        crew.await_that(lambda: "Connection to broker lost" in crew.log_text(), "noticed")
        crew.await_that(lambda: _waits(crew), "delivered again and held back")
        crew.marks.repair()
        _all_done_without_strikes(crew, 2)
        # This process's own connection was cut too, and without confirmation it would not notice.
        fresh = build(crew.environ()).tasks["fleet.healthy"].delay(1)
        assert fresh.get(timeout=PATIENCE) == 1
    assert set(crew.marks.count("waits_for_repair", "start").values()) == {1}, "nothing ran twice"


def _waits(crew: Crew) -> bool:
    return (
        crew.log_text().count("ready.") >= 1
        and "Connected to" in crew.log_text().rpartition("broker lost")[2]
    )


def _cut_broker_connections(crew: Crew, request: pytest.FixtureRequest) -> None:
    if crew.broker_url.startswith("redis"):
        server = request.getfixturevalue("redis_server")
        database = crew.broker_url.rpartition("/")[2]

        def cut() -> int:
            """Those that wait for messages: a worker between two waits has none."""
            waiting = [
                client["id"]
                for client in server.client().client_list()
                if client["db"] == database and client["cmd"] in ("blmove", "eval", "brpop")
            ]
            return sum(server.client().client_kill_filter(_id=id) for id in waiting)

        crew.await_that(cut, "a connection waits for messages")
    else:
        server = request.getfixturevalue("rabbit_server")
        server.ctl("close_all_connections", "--vhost", crew.broker_url.rpartition("/")[2], "test")


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "solo"]))
def test_SAP_2_what_was_prefetched_only_is_not_flagged_when_its_worker_dies(crew: Crew, pool: str) -> None:
    for n in range(8):
        crew.send("waits_for_repair", n)
    slots = 1 if pool == "solo" else 2
    with crew.worker(pool=pool, concurrency=slots) as first:
        _begun(crew, slots)
        crew.await_that(lambda: len([*crew.quarantine.queries.running()]) == slots, "on record")
        first.kill_group()
        first.wait()
    with crew.worker("w2", pool=pool, concurrency=slots):
        crew.await_that(lambda: len(crew.events("failover_finished")) == 1, "recovered")
        flagged = {entry["id"] for entry in crew.events("crashed")}
        assert flagged == {mark.id for mark in crew.marks.all("waits_for_repair", "start")[:slots]}
        crew.marks.repair()
        crew.await_that(lambda: len(crew.marks.count("waits_for_repair", "end")) == 8, "all done")
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "all cleared")
    assert not crew.quarantine.list()
    assert len(crew.events("cleared")) == slots


@REDIS_FIRST
def test_NEW_1_the_neighbours_of_a_poison_are_cleared_and_it_alone_is_quarantined(crew: Crew) -> None:
    neighbours = [crew.send("slow", 0.5 + n / 100) for n in range(3)]
    with crew.worker(concurrency=4) as first:
        crew.await_that(lambda: crew.starts("slow") == 3, "neighbours run")
        poison = crew.send("kill_group")
        first.wait()
    with crew.supervise(concurrency=4):
        crew.await_that(crew.quarantine.list, "in quarantine")
        assert [n.get(timeout=PATIENCE) for n in neighbours]
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "neighbours cleared")
    (kept,) = crew.quarantine.list()
    assert (kept.id, kept.crashes, kept.cause) == (poison.id, 2, "signal:9")
    assert crew.starts("kill_group") == 2
    cleared = {entry["id"] for entry in crew.events("cleared")}
    assert cleared == {n.id for n in neighbours}, "each ran alone, survived, and was cleared"


def test_SAP_2_a_killed_main_process_takes_its_pool_along_and_its_messages_run_elsewhere(crew: Crew) -> None:
    crew.send("waits_for_repair", 1)
    with crew.worker(), crew.worker("w2"):
        _begun(crew)
        (mark,) = crew.marks.all("waits_for_repair", "start")
        os.kill(mark.ppid, signal.SIGKILL)
        _begun(crew, 2)
        crew.marks.repair()
        crew.await_that(lambda: crew.marks.count("waits_for_repair", "end"), "done elsewhere")
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "cleared")
    assert crew.marks.count("waits_for_repair", "end") == {1: 1}


def test_NEW_1_a_trial_that_is_spoilt_by_a_message_being_received_convicts_nobody(crew: Crew) -> None:
    """Two candidates for the blame, one of them alone in the pool: only the one being opened is guilty."""
    innocent = crew.send("waits_for_repair", 1)
    with crew.worker() as first:
        _begun(crew)
        first.kill_group()
        first.wait()
    with crew.worker("w2") as second:
        _begun(crew, 2)
        crew.await_that(lambda: _on_trial(crew), "tried alone")
        poison = crew.app.tasks["fleet.unpickled"].apply_async((KillsItsReader(),), serializer="pickle")
        second.wait()
    with crew.supervise():
        crew.await_that(lambda: crew.starts("waits_for_repair") >= 3, "tried again")
        crew.await_that(crew.quarantine.list, "the guilty one in quarantine")
        crew.marks.repair()
        assert innocent.get(timeout=PATIENCE) == 1
        crew.await_that(lambda: not crew.quarantine.list(candidates=True), "cleared")
    (kept,) = crew.quarantine.list()
    assert (kept.id, kept.cause) == (poison.id, "receive")


def _on_trial(crew: Crew) -> bool:
    return any(start.alone and start.phase == "R" for _, start, _ in crew.quarantine.queries.running())
