"""Processes that are stopped for longer than the activation interval, and go on: nobody's fault (EMS-8)."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery.result import AsyncResult

from celery_poison.plugin import plugin_of
from celery_poison.testing import Worker
from tests.fleet.crew import Watched, frozen
from tests.worker.harbour import Harbour

#: RabbitMQ gives a frozen worker's messages back when its connection has been silent for two heartbeats.
RABBIT = {"broker_heartbeat": 2}
COUNT = 6

matrix = pytest.mark.matrix


def _cells() -> list[Any]:
    """Return pool, broker, and who of the two owners ends first: some of all, the others on request."""
    always = {("threads", "redis", "old")}
    pools, brokers, ends = ("prefork", "threads", "solo", "gevent"), ("redis", "rabbitmq"), ("new", "old")
    cells = [(pool, broker, first) for pool in pools for broker in brokers for first in ends]
    return [pytest.param(*cell, id="-".join(cell), marks=() if cell in always else matrix) for cell in cells]


@pytest.mark.parametrize(("pool", "broker_url", "first"), _cells(), indirect=["broker_url"])
def test_EMS_8_a_frozen_worker_that_comes_back_overwrites_nothing_and_works_again(
    pool: str, first: str, new_crew: Any, broker_url: str
) -> None:
    crew: Watched = new_crew(broker_url, **RABBIT)
    results = crew.hold(COUNT)
    slots = 1 if pool == "solo" else 2
    with crew.worker(pool=pool, concurrency=slots) as old:
        held = crew.await_held(old, slots)
        with crew.worker("w2", pool="threads", concurrency=COUNT) as new:
            new.wait_ready()
            with frozen(*(processes := old.session_pids())):
                crew.await_held(new, COUNT)
                if first == "new":
                    crew.let_go(new.main_pid)
                    _await_results(crew, results, new)
            _let_the_old_ones_end(crew, old, processes)
            _nothing_of_the_new_owner_was_touched(crew, results, new, ended=first == "new")
            crew.let_go()
            _await_results(crew, results, new)
            crew.await_invariants(results, stale=slots)
        _works_again(crew, old)
    assert {entry["id"] for entry in crew.events("stale")} == held
    assert [entry["note"] for entry in crew.events("worker_lost")] == ["frozen"]
    assert [entry["cause"] for entry in crew.events("interrupted")] == ["frozen"] * slots


def _await_results(crew: Watched, results: list[AsyncResult], owner: Worker) -> None:
    crew.await_that(lambda: all(r.state == "SUCCESS" for r in results), "all done by the new owner")
    assert {r.get() for r in results} == {owner.main_pid}


def _let_the_old_ones_end(crew: Watched, old: Worker, processes: list[int]) -> None:
    for pid in processes:
        crew.let_go(pid)
    running = {mark.id for mark in crew.marks.all("holds", "start") if mark.pid in processes}
    crew.await_that(
        lambda: {entry["id"] for entry in crew.events("stale")} == running,
        f"{old.name} learns that its starts count for nothing",
    )


def _nothing_of_the_new_owner_was_touched(
    crew: Watched, results: list[AsyncResult], new: Worker, *, ended: bool
) -> None:
    if ended:
        assert {r.get() for r in results} == {new.main_pid}
        return
    assert not any(r.ready() for r in results), "no result of the old owner's"
    starts = {start.id: start for _, start, _ in crew.quarantine.queries.running()}
    assert set(starts) == {r.id for r in results}
    assert {start.worker.partition("/")[0] for start in starts.values()} == {new.hostname}
    if crew.broker_url.startswith("redis"):
        (boot,) = {start.worker.partition("/")[2] for start in starts.values()}
        tags = redis.Redis.from_url(crew.broker_url, decode_responses=True).hkeys("unacked")
        mine = [tag for tag in tags if tag.startswith(f"{boot}-")]
        assert len(mine) == COUNT, f"a late acknowledgement took the new owner's: {tags}"


def _works_again(crew: Watched, worker: Worker) -> None:
    """Called when nobody else is left to do it."""
    more = [crew.send("healthy", n) for n in range(4)]
    crew.await_that(lambda: all(r.state == "SUCCESS" for r in more), f"{worker.name} works again")
    assert worker.is_alive()


@pytest.mark.parametrize("first", ["new", pytest.param("old", marks=matrix)])
@pytest.mark.parametrize("broker_url", ["redis", pytest.param("rabbitmq", marks=matrix)], indirect=True)
def test_EMS_11_of_a_frozen_worker_that_comes_back_and_commits_nothing_leaves(
    first: str, new_crew: Any, broker_url: str
) -> None:
    crew: Watched = new_crew(broker_url, **RABBIT)
    ships = Harbour(crew)
    results = [crew.send("holds_and_ships", n) for n in range(2)]
    with crew.worker() as old:
        crew.await_held(old, 2)
        with crew.worker("w2") as new:
            new.wait_ready()
            with frozen(*(processes := old.session_pids())):
                crew.await_held(new, 2)
                if first == "new":
                    crew.let_go()
                    crew.await_that(lambda: all(each.ready() for each in results), "the new owner is done")
            for pid in processes:
                crew.let_go(pid)
            crew.await_events("stale", 2)
            assert first == "new" or not ships.boxes(), "the new owner still holds them"
            crew.let_go()
            crew.await_invariants(results, stale=2)
            owners = {n: result.get() for n, result in enumerate(results)}
            assert not {*owners.values()} & {*processes}
            crew.await_that(lambda: len(ships.boxes()) >= 4, "what the new owner has sent")
    assert sorted(ships.boxes()) == [f"{n}:{box}:{owners[n]}" for n in range(2) for box in range(2)]


@pytest.mark.parametrize("broker_url", ["redis", pytest.param("rabbitmq", marks=matrix)], indirect=True)
def test_TP1_8_what_runs_in_the_pool_of_a_frozen_main_process_is_not_started_again(
    new_crew: Any, broker_url: str
) -> None:
    crew: Watched = new_crew(broker_url, **RABBIT)
    results = crew.hold(COUNT)
    with crew.worker() as old:
        held = crew.await_held(old, 2)
        children = {mark.pid for mark in crew.marks.all("holds", "start")}
        with crew.worker("w2", pool="threads", concurrency=COUNT) as new:
            new.wait_ready()
            with frozen(old.main_pid):
                assert crew.await_events("worker_lost")[0]["note"] == "frozen"
                crew.await_held(new, COUNT - 2)
                crew.let_go()
                crew.await_events("failover_finished")
            crew.await_invariants(results)
        _works_again(crew, old)
    assert {r.get() for r in results if r.id in held} == children
    assert set(crew.marks.count("holds", "start").values()) == {1}, "nothing ran twice"
    assert not crew.events("interrupted")


def test_TP1_8_a_frozen_pool_process_alone_is_waited_for(crew: Watched) -> None:
    results = crew.hold(2)
    with crew.worker(concurrency=4) as old:
        crew.await_held(old, 2)
        mark = crew.marks.all("holds", "start")[0]
        ledger = plugin_of(crew.app).open_ledger()
        worker = next(s.worker for _, s, _ in crew.quarantine.queries.running() if s.pid == mark.pid)
        with crew.worker("w2") as new:
            new.wait_ready()
            with frozen(mark.pid):
                lease = ledger.keys.child(worker, mark.pid)
                crew.await_that(lambda: not ledger.client.exists(lease), "its own lease has run out")
                more = [crew.send("healthy", n) for n in range(4)]
                crew.await_that(lambda: all(r.state == "SUCCESS" for r in more), "the others go on")
            crew.let_go()
            crew.await_invariants(results)
        assert old.is_alive()
    assert not crew.events("worker_lost", "interrupted", "stale")
    assert crew.marks.count("holds", "start") == {0: 1, 1: 1}
