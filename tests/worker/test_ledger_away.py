"""The plugin must never make Celery worse: the ledger may be away, full, read-only, too old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.ledger.keys import Keys
from celery_poison.testing import RedisServer
from tests import PATIENCE
from tests.worker.conftest import Crew


@pytest.fixture
def ledger_server(new_server: Callable[..., RedisServer]) -> RedisServer:
    """A Redis for the ledger alone, which a test may stop, pause or spoil."""
    return new_server()


@pytest.fixture
def apart(new_crew: Callable[..., Crew], redis_url: str, ledger_server: RedisServer) -> Callable[..., Crew]:
    """Makes a crew whose ledger is not on the broker's Redis."""
    return lambda **settings: new_crew(redis_url, poison_redis_url=ledger_server.url(), **settings)


def test_NEW_8_tasks_go_on_while_the_ledger_is_away_and_are_guarded_again_when_it_is_back(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    crew = apart()
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        ledger_server.stop()
        for n in range(1, 21):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 21, "done without a ledger")
        ledger_server.start()
        crew.await_that(lambda: crew.unguarded() >= 20, "status says what was not guarded")
        poison = crew.send("kill_child")
        crew.await_that(crew.quarantine.list, "guarded again without a restart")
    assert crew.quarantine.list()[0].id == poison.id


def test_NEW_8_a_stalled_ledger_does_not_stall_tasks(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    crew = apart()
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        ledger_server.pause()
        for n in range(1, 21):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 21, "done beside a stalled ledger")
        ledger_server.resume()
        crew.await_that(crew.nothing_runs, "settled")
        assert crew.send("healthy", 99).get(timeout=PATIENCE) == 99
    assert crew.no_strikes()


def test_a_ledger_that_refuses_writes_is_counted_and_stops_nobody(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    crew = apart()
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        ledger_server.client().config_set("maxmemory", "1")
        for n in range(1, 11):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 11, "done")
        ledger_server.client().config_set("maxmemory", "0")
        crew.await_that(lambda: crew.unguarded() >= 10, "counted")


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.matrix)])
def test_NEW_24_a_start_that_redis_refused_between_two_heartbeats_is_on_record_after_the_next(
    apart: Callable[..., Crew], ledger_server: RedisServer, pool: str
) -> None:
    crew = apart(poison_heartbeat_interval=1.5, poison_activation_interval=10.0)
    admin, leases = ledger_server.client(), Keys().leases
    with crew.worker(pool=pool):
        crew.await_that(lambda: admin.zcard(leases), "it lives")
        beats = admin.zrange(leases, 0, -1, withscores=True)
        crew.await_that(lambda: admin.zrange(leases, 0, -1, withscores=True) != beats, "a heartbeat")
        admin.config_set("maxmemory", "1")
        sent = crew.send("gated", 0)
        crew.await_that(lambda: crew.starts("gated"), "it runs")
        admin.config_set("maxmemory", "0")
        assert crew.nothing_runs(), "its start was refused"
        running = crew.quarantine.queries.running
        crew.await_that(lambda: [start.id for _, start, _ in running()] == [sent.id], "it is on record")
        crew.marks.open_gate()
        crew.await_that(crew.nothing_runs, "and off it")
    assert crew.no_strikes()


def test_a_strike_that_cannot_be_recorded_holds_its_message_back(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    crew = apart()
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        ledger_server.pause()
        crew.send("kill_child")
        crew.await_that(lambda: crew.starts("kill_child") == 1, "died once")
        for n in range(1, 11):
            crew.send("healthy", n)
        crew.await_that(lambda: crew.done() == 11, "others go on")
        assert crew.starts("kill_child") == 1, "not given back before its death is on record"
        ledger_server.resume()
        crew.await_that(crew.quarantine.list, "recorded, run alone, convicted")
    assert crew.starts("kill_child") == 2


def test_with_fail_open_false_tasks_are_held_back_until_the_ledger_is_there(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    crew = apart(poison_fail_open=False)
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        ledger_server.stop()
        crew.await_that(lambda: "not reachable" in crew.log_text(), "noticed")
        crew.send("healthy", 1)
        crew.await_that(lambda: crew.log_text().count("fleet.healthy[") >= 2, "received")
        assert crew.done() == 1
        ledger_server.start()
        crew.await_that(lambda: crew.done() == 2, "run when the ledger is back")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"poison_max_crashs": 3}, "did you mean poison_max_crashes"),
        ({"poison_heartbeat_interval": 6}, "at least twice"),
    ],
)
def test_a_wrong_setting_stops_the_worker_with_a_sentence(
    new_crew: Callable[..., Crew], redis_url: str, settings: dict[str, Any], sentence: str
) -> None:
    crew = new_crew(redis_url)
    crew.settings.update(settings)
    worker = crew.worker().start()
    assert worker.wait() != 0
    assert sentence in worker.log_text()
    assert "Traceback" not in worker.log_text()


def test_a_redis_that_evicts_keys_at_will_is_refused(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    ledger_server.client().config_set("maxmemory-policy", "allkeys-lru")
    worker = apart().worker().start()
    assert worker.wait() != 0
    assert "set it to noeviction" in worker.log_text()


def test_a_ledger_of_another_app_is_refused(apart: Callable[..., Crew], ledger_server: RedisServer) -> None:
    ledger_server.client().hset("{poison}:meta", mapping={"app": "somebody-else"})
    worker = apart().worker().start()
    assert worker.wait() != 0
    assert "poison_namespace" in worker.log_text() and "somebody-else" in worker.log_text()


def test_a_worker_starts_without_its_ledger_and_guards_as_soon_as_it_is_there(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    ledger_server.stop()
    crew = apart()
    with crew.worker():
        assert crew.send("healthy", 0).get(timeout=PATIENCE) == 0
        ledger_server.start()
        crew.await_that(lambda: crew.quarantine.queries.workers(1000), "enrolled")
        crew.send("kill_child")
        crew.await_that(crew.quarantine.list, "guarded")


def test_with_fail_open_false_a_worker_refuses_to_start_without_its_ledger(
    apart: Callable[..., Crew], ledger_server: RedisServer
) -> None:
    ledger_server.stop()
    worker = apart(poison_fail_open=False).worker().start()
    assert worker.wait() != 0
    assert "not reachable" in worker.log_text()
