"""The verdict of `status`: what must be decided, what is broken, and when that is over."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.desk.overview import FADED, Level, Overview
from celery_poison.desk.read_model import ReadModel
from celery_poison.desk.survey import lost_workers, overview
from celery_poison.ledger.fleet_model import Incident, WorkerRecord
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

WORKER = "w1@test/b00t"


@pytest.fixture
def console(fleet: Fleet) -> Console:
    return Console(fleet.app)


def _beat(keeper: Keeper, *, first: bool = True, **about: Any) -> None:
    keeper.sign()
    keeper.ledger.fleet.beat(WORKER, {"node": "w1@test", **about}, first=first)
    keeper.ledger.client.zadd(keeper.ledger.keys.leases, {WORKER: 10**15})  # heard just now, for long
    keeper.ledger.fleet.lead(WORKER, 600_000)


def _first_line(console: Console) -> str:
    return console.out("status").splitlines()[0]


def test_all_is_well_only_while_nothing_is_in_quarantine(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    _beat(keeper)
    assert _first_line(console) == "all is well: 1 worker, nothing in quarantine"
    console.run("status", "--check", status=0)
    mid = keeper.send_and_keep("fleet.healthy", 1)
    told = r"1 message needs a decision \(\d+ s, task fleet\.healthy, SIGKILL\)"
    assert re.fullmatch(told, _first_line(console))
    keeper.send_and_keep("fleet.kill_child")
    said = console.out("status")
    told = r"2 messages need a decision \(oldest \d+ s, task fleet\.healthy, SIGKILL\)\n"
    assert re.match(told, said)
    id = fleet.quarantine.get(mid).id
    assert f"celery -A proj poison show {id[:8]}\n" in said
    assert console.run("status", "--check", status=1).stdout.startswith("2 messages need")
    seen = console.json("status", "--check", status=1)
    assert (seen["level"], seen["oldest"]["id"], seen["faults"]) == ("decide", id, [])
    assert seen["verdict"].startswith("2 messages need a decision")


def test_without_a_worker_something_is_broken_and_what_is_to_be_decided_is_said_first(
    console: Console, keeper: Keeper
) -> None:
    keeper.sign()
    keeper.send_and_keep("fleet.healthy", 1)
    told = console.run("status", "--check", status=2).stdout.splitlines()
    assert told[0].startswith("1 message needs a decision")
    assert told[2].startswith("broken: no worker is alive"), "after whether it goes on"
    assert console.json("status", "--check", status=2)["level"] == "broken"


def test_a_doubt_about_redis_is_told_and_breaks_nothing(console: Console, keeper: Keeper) -> None:
    _beat(keeper)
    seen = console.json("status", "--check", status=0)
    assert seen["faults"] == [] and any("no persistence" in said for said in seen["warnings"])


def test_a_ledger_that_no_worker_has_used_is_told_with_the_namespaces_that_there_are(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    keeper = Keeper(new_fleet(redis_url, poison_namespace="shop").app)
    keeper.sign()
    keeper.close()
    console = Console(new_fleet(redis_url, poison_namespace="shpo").app)
    (said, *_) = console.json("status", "--check", status=2)["faults"]
    assert "no worker has used this ledger" in said and "'shpo'" in said
    assert said.endswith("this Redis has the namespaces shop")


def test_a_redis_that_came_back_empty_is_told_though_its_workers_live(
    console: Console, keeper: Keeper
) -> None:
    _beat(keeper)
    assert console.json("status")["level"] == "well"
    keeper.ledger.client.flushdb()
    _beat(keeper, first=False)
    (said,) = console.json("status", "--check", status=2)["faults"]
    assert said.startswith("Redis came back empty, or with old data, at 2")
    _beat(keeper, first=False)
    assert console.json("status")["faults"] == [said], "the moment stays"


def test_unguarded_names_the_tasks_that_are_not_guarded(console: Console, keeper: Keeper) -> None:
    _beat(keeper, guarded_tasks=3, unguarded_tasks="app.mail,app.ping")
    assert "tasks       3 guarded, 2 unguarded (app.mail, app.ping)\n" in console.out("status")
    seen = console.json("status")
    assert (seen["guarded_tasks"], seen["unguarded_tasks"]) == (3, ["app.mail", "app.ping"])


def test_tasks_that_acknowledge_early_are_named_as_only_observed(console: Console, keeper: Keeper) -> None:
    _beat(keeper, guarded_tasks=3, observed_tasks="app.early,app.soon")
    told = "1 guarded, 2 only observed, since they acknowledge early (app.early, app.soon), 0 unguarded\n"
    assert told in console.out("status")


def test_NEW_8_a_poison_that_is_only_observed_is_the_first_line_and_needs_a_decision(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    fleet = new_fleet(redis_url, poison_observe_only=True)
    keeper, console = Keeper(fleet.app), Console(fleet.app)
    _beat(keeper)
    assert _first_line(console) == "observing: 1 worker, no message would be in quarantine now"
    for number in range(3):
        start = Start.of(f"b.{number}", WORKER, "i1234567", "fleet.thumbnail")
        keeper.ledger.messages.crash("m1", start, cause="signal:9", shared=False)
    assert keeper.ledger.quarantine.observe("m1", start, cause="signal:9", reason="two deaths")
    assert not keeper.ledger.quarantine.observe("m1", start, cause="signal:9", reason="three deaths")
    said = console.run("status", "--check", status=1).stdout
    told = "observing: 1 message would be in quarantine (fleet.thumbnail, SIGKILL, 3 deaths)"
    assert said.splitlines()[0] == told
    assert "poison show i1234567" in said and "need not wait" not in said
    assert "observing: 1 message would be in quarantine: 1 fleet.thumbnail" in console.out("incidents")
    shown = console.run("show", "i1234567").output
    assert "It is only observed (poison_observe_only)" in shown and "one more death" not in shown
    assert "poison fail" not in shown and "poison journal tail" in shown
    keeper.close()


def _seen_after(fleet: Fleet, keeper: Keeper, seconds: float) -> Overview:
    """Look as if what went wrong last had been so long ago."""
    worker = keeper.ledger.keys.worker(WORKER)
    raw: Any = keeper.ledger.client.hget(worker, "troubled_at")
    keeper.ledger.client.hset(worker, "troubled_at", int(raw) - int(seconds * 1000))
    return overview(fleet.app)


def test_errors_fade_when_none_has_come_for_a_while_and_are_back_with_the_next(
    fleet: Fleet, keeper: Keeper
) -> None:
    _beat(keeper, unguarded=2, ledger_errors=1)
    seen = overview(fleet.app)
    assert (seen.unguarded, seen.ledger_errors, seen.level) == (2, 1, Level.BROKEN)
    _beat(keeper, first=False, unguarded=2, ledger_errors=1)
    seen = _seen_after(fleet, keeper, FADED)
    assert (seen.unguarded, seen.ledger_errors, seen.level) == (0, 0, Level.WELL)
    _beat(keeper, first=False, unguarded=2, ledger_errors=2)
    assert overview(fleet.app).ledger_errors == 2


def test_NEW_14_a_dead_worker_is_lost_for_a_day_and_the_newest_is_named_first() -> None:
    now, died = 10.0**6, {"w@back": 5, "w@pod-7": 60, "w@pod-3": 3000, "w@pod-1": 86_400}
    incidents = [
        Incident(incident=node, worker=f"{node}/b00t", cause="worker_lost", died_at=now - age)
        for node, age in died.items()
    ]
    workers = [
        WorkerRecord(worker="w@back/b002", node="w@back", alive=True),
        WorkerRecord(worker="w@mute/b00t", node="w@mute", alive=False, last_beat=now - 100),
    ]
    lost = [each.worker.partition("/")[0] for each in lost_workers(incidents, workers, now)]
    assert lost == ["w@pod-7", "w@mute", "w@pod-3"]


def test_NEW_14_who_looks_again_and_again_keeps_no_connection_of_an_earlier_look(fleet: Fleet) -> None:
    model, watcher = ReadModel(fleet.app), plugin_of(fleet.app).open_ledger().client

    def connections_after(looks: int) -> int:
        for _ in range(looks):
            model.look()
            overview(fleet.app)
        gc.collect()
        clients: Any = watcher.client_list()
        mine = watcher.connection_pool.connection_kwargs["db"]
        return sum(int(each["db"]) == mine for each in clients)

    at_first = connections_after(1)
    assert connections_after(15) <= at_first
