"""`status`, `doctor` and the metrics tell of messages that nobody works on, and what to type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from celery_poison.metrics import register
from celery_poison.model import Start
from celery_poison.testing import RedisServer
from tests.apps.harness import Fleet
from tests.broker.kit import Site, new_boot_id
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.fleet.standalone import MonitorProcess
from tests.metrics.conftest import scraped

#: What a dead worker held counts as stuck after 0.9 s, a candidate that nobody runs after 9 s.
QUICK = {"poison_heartbeat_interval": 0.1, "poison_activation_interval": 0.3}


@pytest.fixture
def fleet(new_fleet: Callable[..., Fleet], broker_url: str) -> Fleet:
    return new_fleet(broker_url, **QUICK)


def _stuck(console: Console, **wanted: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = console.json("status")["stuck"]
    return [stuck for stuck in found if wanted.items() <= stuck.items()]


def _kill_a_worker_that_holds(fleet: Fleet, count: int) -> set[str]:
    """Kill a worker and its monitor; return the task ids of what it held."""
    sent = {fleet.send("slow", 600).id for _ in range(count)}
    with fleet.worker(concurrency=1) as worker:
        fleet.await_that(lambda: fleet.marks.all("slow", "start"), "one runs")
        site = Site(fleet.broker_url)
        fleet.await_that(lambda: len(site.entries()) == count, "the others are with it too")
        worker.kill_group()
    site.close()
    return sent


def test_NEW_9_what_a_killed_worker_held_is_told_until_somebody_puts_it_back(
    fleet: Fleet, console: Console, entry_points: Path
) -> None:
    sent = _kill_a_worker_that_holds(fleet, 3)
    fleet.await_that(lambda: {stuck["id"] for stuck in _stuck(console)} == sent, "all are told")
    (first, *_) = told = _stuck(console, kind="unacked", queue="celery")
    assert len(told) == 3 and first["age"] > 0.9
    assert "w1@test" in first["why"] and "is gone" in first["why"]
    assert first["cure"] == "celery -A proj worker -Q celery"
    assert console.json("status")["stuck_messages"] == {"candidate": 0, "parked": 0, "unacked": 3}
    said = console.out("status")
    assert "no worker works on 3 messages: 3 unacked" in said and "all is well" not in said
    assert f"cure: {first['cure']}" in said and all(id in said for id in sent)
    (finding,) = [f for f in console.json("doctor") if f["check"] == "stuck"]
    assert (finding["level"], finding["cure"]) == ("warn", first["cure"])
    with MonitorProcess(fleet, entry_points):
        fleet.await_that(lambda: not _stuck(console, kind="unacked"), "put back")


def test_NEW_9_the_metrics_count_what_a_killed_worker_held(fleet: Fleet) -> None:
    _kill_a_worker_that_holds(fleet, 2)
    registry = CollectorRegistry()
    exporter = register(fleet.app, interval=0.1, registry=registry)
    wanted = {("stuck_messages", ("unacked",)): 2, ("stuck_messages", ("parked",)): 0}
    fleet.await_that(lambda: wanted.items() <= scraped(registry).items(), "counted")
    exporter.close()


def test_NEW_9_a_candidate_that_nobody_runs_is_told_with_the_worker_that_lacks(
    fleet: Fleet, console: Console, entry_points: Path
) -> None:
    result = fleet.send("kill_group")
    with fleet.worker(concurrency=1) as worker, MonitorProcess(fleet, entry_points):
        worker.wait()
        fleet.await_that(lambda: _stuck(console, id=result.id, kind="candidate"), "told")
        (stuck,) = _stuck(console)
    assert stuck["cure"] == "celery -A proj worker -Q celery"
    assert "not run since" in stuck["why"]


def _start(worker: str, phase: str = "R") -> Start:
    return Start(phase, f"t.{phase}", worker, 7, 1, 1, 0, "id", "t", "celery", 2, 5, 1, 1)


def _hear(keeper: Keeper, worker: str, at_ms: int, queues: str) -> None:
    """Put a worker on record that was heard at this moment; it may be to come."""
    keeper.ledger.fleet.beat(worker, {"queues": queues}, first=True)
    keeper.ledger.client.zadd(keeper.ledger.keys.leases, {worker: at_ms})


def test_NEW_9_a_parked_message_is_stuck_once_nothing_is_in_its_way(
    fleet: Fleet, console: Console, keeper: Keeper
) -> None:
    ledger, queries, worker = keeper.ledger, fleet.quarantine.queries, f"w1@h/{new_boot_id()}"
    _hear(keeper, worker, queries.now_ms() + 10**6, "celery")
    ledger.client.hset(ledger.keys.running, "m", _start(worker).encode())
    assert ledger.parking.park("m", _start(worker).encode(), _start(worker, "C"), number=0, parcel=b"x")
    ((_, parked),) = queries.parked_now()
    fleet.await_that(lambda: queries.now_ms() - parked.number > 2000, "it waits for what runs")
    assert not _stuck(console)
    _hear(keeper, worker, 1, "celery")
    (stuck,) = _stuck(console, kind="parked", id="id", queue="celery")
    assert stuck["why"].endswith(f"{worker} is gone")
    ledger.client.hdel(ledger.keys.running, "m")
    (stuck,) = _stuck(console, kind="parked", id="id", queue="celery")
    assert stuck["why"] == "parked, and nothing is left that it has to wait for"


def test_NEW_1_a_suspect_that_waits_for_a_cell_is_not_stuck_while_workers_serve_its_queue(
    fleet: Fleet, console: Console, keeper: Keeper
) -> None:
    ledger, queries, worker = keeper.ledger, fleet.quarantine.queries, f"w1@h/{new_boot_id()}"
    _hear(keeper, worker, queries.now_ms() + 10**6, "celery")
    suspect = _start(worker)._replace(alone=1)
    ledger.messages.crash("m", suspect, cause="worker_lost", shared=True)
    assert ledger.parking.park("m", b"", suspect, number=0, parcel=b"x")
    ((_, parked),) = queries.parked_now()
    fleet.await_that(lambda: queries.now_ms() - parked.number > 2000, "longer than others wait")
    assert not _stuck(console)
    _hear(keeper, worker, queries.now_ms() + 10**6, "another")
    (stuck,) = _stuck(console, kind="parked", id="id", queue="celery")
    assert stuck["cure"] == "celery -A proj worker -Q celery"


# --- unacknowledged, by owner ------------------------------------------------------------------------


@pytest.fixture
def site(fleet: Fleet) -> Iterator[Site]:
    site = Site(fleet.broker_url)
    yield site
    site.close()


def test_NEW_9_what_a_living_worker_has_forgotten_is_told(
    fleet: Fleet, console: Console, keeper: Keeper, site: Site
) -> None:
    receiver = site.receiver(queues=["a"])
    worker = f"w1@h/{receiver.boot_id}"
    site.send("held", "forgotten")
    receiver.receive(2)

    now: Any = site.raw.time()
    _hear(keeper, worker, 1000 * now[0] + 10**6, "a")
    keeper.ledger.fleet.lead(worker, 600_000)
    site.raw.zadd(site.index, {receiver.messages[0].delivery_tag: now[0] + 1000})
    fleet.await_that(lambda: _stuck(console), "told")
    (stuck,) = _stuck(console)
    assert (stuck["kind"], stuck["id"], stuck["queue"]) == ("unacked", "id-forgotten", "a")
    assert f"{worker} lives, and knows nothing of it" in stuck["why"]
    assert stuck["cure"].startswith("none needed: it is put back when its visibility timeout ends, at 2")


@pytest.mark.parametrize("boot_id", ["", "0123456789abcdef"], ids=["plain", "another app"])
def test_NEW_9_what_an_unknown_worker_holds_is_told_when_its_broker_should_have_put_it_back(
    fleet: Fleet, console: Console, site: Site, boot_id: str
) -> None:
    site.send("plain", queue="a")
    receiver = site.receiver(boot_id, queues=["a"])
    (message,) = receiver.receive(1)
    seconds: Any = site.raw.time()
    site.raw.zadd(site.index, {message.delivery_tag: seconds[0] - 3600 - 200})
    assert not _stuck(console)
    site.raw.zadd(site.index, {message.delivery_tag: seconds[0] - 3600 - 400})
    (stuck,) = _stuck(console)
    assert (stuck["kind"], stuck["id"]) == ("unacked", "id-plain")
    assert "that this ledger does not know" in stuck["why"]


def test_NEW_9_a_foreign_entry_that_nobody_can_read_is_told_by_its_tag(
    fleet: Fleet, console: Console, site: Site
) -> None:
    dead, huge = f"{new_boot_id()}-1", f"{new_boot_id()}-1"
    site.raw.hset(site.unacked, mapping={dead: "no JSON", huge: "x" * 2_000_000})
    site.raw.zadd(site.index, {dead: 1, huge: 2, "acknowledged": 3})
    assert [stuck["id"] for stuck in _stuck(console)] == [dead, huge]
    assert console.out("status").count(f"stuck: {dead} of queue ? since 1970") == 1


def test_NEW_9_of_many_the_oldest_are_told_and_all_are_counted(console: Console, site: Site) -> None:
    tags = [f"{new_boot_id()}-{number}" for number in range(30)]
    site.raw.hset(site.unacked, mapping=dict.fromkeys(tags, "no JSON"))
    site.raw.zadd(site.index, {tag: number + 1 for number, tag in enumerate(tags)})
    seen = console.json("status")
    assert [stuck["id"] for stuck in seen["stuck"]] == tags[:20]
    assert seen["stuck_messages"]["unacked"] == 30
    assert "27 more messages" in console.out("status")


def test_NEW_9_a_broker_that_is_away_is_told_and_the_ledger_is_read_all_the_same(
    new_fleet: Callable[..., Fleet], new_server: Callable[..., RedisServer], redis_url: str
) -> None:
    server = new_server()
    console = Console(new_fleet(server.url(), poison_redis_url=redis_url, **QUICK).app)
    assert console.json("status")["stuck_messages"] == {"candidate": 0, "parked": 0, "unacked": 0}
    server.kill()
    seen = console.json("status")
    assert seen["stuck_messages"] == {"candidate": 0, "parked": 0}
    assert any("unacknowledged messages are not known" in said for said in seen["warnings"])


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_NEW_9_on_RabbitMQ_nothing_is_said_of_what_only_the_broker_knows(console: Console) -> None:
    seen = console.json("status")
    assert seen["stuck_messages"] == {"candidate": 0, "parked": 0}
    assert not any("not known" in said for said in seen["warnings"])
