"""What Prometheus sees of a ledger, and that nobody who asks ever waits for Redis."""

from __future__ import annotations

import math
import sys
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from celery_poison import Quarantine
from celery_poison.desk.read_model import MAX_NAME, MAX_SERIES, OTHERS, series
from celery_poison.errors import ConfigurationError
from celery_poison.ledger.fleet import RECOVERY_BOUNDS, Silence
from celery_poison.ledger.groups import Alike
from celery_poison.metrics import register
from celery_poison.metrics.exporter import Exporter
from celery_poison.metrics.families import FAMILIES, HEALTH
from celery_poison.metrics.family import PREFIX
from celery_poison.model import Guilt, Start
from celery_poison.testing import RedisServer, wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.metrics.conftest import Scraper, scraped


def test_a_quarantine_is_counted_by_task_cause_and_queue(scraper: Scraper, keeper: Keeper) -> None:
    for _ in range(2):
        keeper.send_and_keep("fleet.healthy", 1)
    keeper.send_and_keep("fleet.kill_child", cause="payload", queue="other")
    seen = scraper.await_that("quarantine_messages", "payload", "other", "fleet.kill_child", is_=1)
    assert seen["quarantine_messages", ("signal:9", "celery", "fleet.healthy")] == 2
    wait_until(lambda: scraper.now()["quarantine_oldest_seconds", ()] > 0)  # read a moment before these
    assert seen["crashes_total", ("signal:9",)] == 4
    assert seen["convictions_total", ("signal:9",)] == 2
    assert seen["diversions_total", ("payload",)] == 1
    assert ("convictions_total", ("payload",)) not in seen
    scraper.await_that("up", is_=1)


def test_what_leaves_the_quarantine_leaves_the_gauges_and_stays_in_the_counters(
    scraper: Scraper, keeper: Keeper, fleet: Fleet
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    scraper.await_that("quarantine_messages", "signal:9", "celery", "fleet.healthy", is_=1)
    Quarantine(fleet.app).fail([mid])
    seen = scraper.await_that("given_up_messages", is_=1)
    assert ("quarantine_messages", ("signal:9", "celery", "fleet.healthy")) not in seen
    assert seen["quarantine_oldest_seconds", ()] == 0
    assert seen["convictions_total", ("signal:9",)] == 1


def test_candidates_trials_and_acquittals(scraper: Scraper, keeper: Keeper) -> None:
    def start(number: int, alone: int) -> Start:
        return Start("R", f"b.{number}", "w1@h/b", 7, 1, 1, alone, "i", "t", "celery", 2, 5, 1, 1)

    keeper.ledger.messages.crash("m", start(1, 0), cause="worker_lost", shared=True)
    scraper.await_that("candidates", is_=1)
    keeper.ledger.messages.claim("m", b"", start(2, 2))
    keeper.ledger.messages.claim("beside", b"", start(3, 0))
    keeper.ledger.messages.claim("over", b"", start(4, 1))
    keeper.ledger.client.hset(keeper.ledger.keys.done, start(4, 1).token, "D")
    seen = scraper.await_that("running", is_=2)
    assert scraper.await_that("candidates", is_=1)["trials", ()] == 1
    keeper.ledger.messages.acquit("m", start(2, 2), Guilt.CLEARED)
    scraper.await_that("acquittals_total", is_=1)
    seen = scraper.await_that("candidates", is_=0)  # counted a moment before
    assert seen["trials", ()] == 0


def test_workers_what_they_missed_and_recoveries_from_their_deaths(scraper: Scraper, keeper: Keeper) -> None:
    ledger = keeper.ledger
    ledger.fleet.beat("w1@h/b", {"node": "w1@h", "unguarded": 3, "ledger_errors": 2}, first=True)
    ledger.fleet.beat("w2@h/b", {"node": "w2@h", "stopping": 1}, first=True)
    seen = scraper.await_that("workers", "stopping", is_=1)
    assert (seen["workers", ("alive",)], seen["workers", ("silent",)]) == (1, 0)
    assert (seen["unguarded_tasks", ()], seen["ledger_errors", ()]) == (3, 2)
    assert seen["monitor_present", ()] == 0
    led = ledger.fleet.lead("w2@h/b", 60_000)
    assert led is not None
    ledger.fleet.declare_dead("w1@h/b", "incident", Silence.SILENT, 0, led[0])
    seen = scraper.await_that("open_incidents", is_=1)
    assert seen["monitor_present", ()] == 1
    ledger.fleet.close_incident("w1@h/b", "incident", flagged=0, put_back=0, returned={}, fence=led[0])
    seen = scraper.await_that("recovery_seconds_count", is_=1)
    buckets = [seen["recovery_seconds_bucket", (bound,)] for bound in [*map(_float, RECOVERY_BOUNDS), "+Inf"]]
    assert buckets == sorted(buckets) and buckets[-1] == 1
    above = [bound for bound, count in zip([*RECOVERY_BOUNDS, math.inf], buckets, strict=True) if count]
    assert 0 < seen["recovery_seconds_sum", ()] <= above[0], "it is in its bucket"


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_MSG_7_what_each_queue_has_in_store_is_counted_for_who_adds_workers(
    new_fleet: Callable[..., Fleet], broker_url: str
) -> None:
    fleet = new_fleet(broker_url, poison_queues={"celery.quarantine": {"max_messages": 9}})
    keeper, scraper = Keeper(fleet.app), Scraper(fleet)
    keeper.ledger.fleet.beat("w1@h/b", {"node": "w1@h", "queues": "celery,mail"}, first=True)
    keeper.ledger.client.zadd(keeper.ledger.keys.leases, {"w1@h/b": 10**15})  # heard just now, for long
    fleet.send("healthy", 1, priority=0)
    fleet.send("healthy", 2, priority=9)
    start = Start("R", "b.1", "w1@h/b", 7, 1, 1, 0, "i", "t", "mail", 2, 5, 1, 1)
    keeper.ledger.messages.crash("m", start, cause="worker_lost", shared=True)
    keeper.ledger.parking.park("p", b"", start._replace(id="p"), number=0, parcel=b"x")
    scraper.await_that("queue_messages", "celery", "waiting", is_=2)
    seen = scraper.await_that("queue_messages", "mail", "parked", is_=1)
    found = {labels: number for (name, labels), number in seen.items() if name == "queue_messages"}
    assert (found["celery", "waiting"], found["mail", "waiting"], found["mail", "candidates"]) == (2, 0, 1)
    assert seen["queue_limit_messages", ("celery.quarantine",)] == 9
    scraper.exporter.close()
    keeper.close()


def test_NEW_1_the_fleet_gate_is_a_gauge(scraper: Scraper, keeper: Keeper) -> None:
    assert scraper.await_that("up", is_=1)["fleet_gate_closed", ()] == 0
    keeper.ledger.client.hset(keeper.ledger.keys.gate, "until", 10**14)
    scraper.await_that("fleet_gate_closed", is_=1)
    assert keeper.ledger.fleet.lift_gate("ann")
    scraper.await_that("fleet_gate_closed", is_=0)


def _float(bound: float) -> str:
    return str(bound)


def test_the_lag_of_the_journal_is_the_age_of_its_oldest_entry(scraper: Scraper, keeper: Keeper) -> None:
    assert scraper.await_that("up", is_=1)["journal_lag_seconds", ()] == 0
    keeper.send_and_keep("fleet.healthy", 1)
    seen = scraper.await_that("journal_entries", is_=3)
    assert seen["journal_lag_seconds", ()] > 0


def test_two_exporters_tell_the_same_totals_and_a_new_one_goes_on_where_the_old_one_was(
    scraper: Scraper, keeper: Keeper, fleet: Fleet
) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    scraper.await_that("crashes_total", "signal:9", is_=2)
    again = Scraper(fleet)
    again.await_that("crashes_total", "signal:9", is_=2)
    again.exporter.close()


def test_every_family_is_exported_under_its_name(scraper: Scraper, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    keeper.send_and_keep("fleet.healthy", 1, cause="payload")
    # Nobody consumes, limits, or sends to a queue here, nor has a database of their own.
    absent = {"queue_messages", "queue_limit_messages", "outbox_messages"}
    absent |= {"outbox_database_messages", "outbox_database_oldest_seconds"}
    missing = {family.name for family in (*FAMILIES, *HEALTH)} - absent

    def are_all_there() -> bool:
        # What extensions show is read first: one look may have the second message, and not yet the first.
        missing.difference_update(name.removesuffix("_count") for name, _ in scraper.now())
        return not missing

    wait_until(are_all_there, what=lambda: f"the families {missing}")


# --- nobody waits for Redis --------------------------------------------------------------------------


def test_a_look_that_takes_for_ever_holds_up_nobody_who_asks() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def look() -> Any:
        entered.set()
        go_on.wait()
        raise OSError("the end")

    registry = CollectorRegistry()
    exporter = Exporter(look, 0.01, registry).start()
    entered.wait()
    wait_until(lambda: scraped(registry).get(("up", ())) == 0, what="it is late")
    exporter.close()
    go_on.set()


def test_registering_looks_at_nothing() -> None:
    def look() -> Any:
        raise AssertionError("never to be called")

    exporter = Exporter(look, 1.0, CollectorRegistry())
    names = {metric.name for metric in exporter.describe()}
    assert names == {PREFIX + family.name.removesuffix("_total") for family in (*FAMILIES, *HEALTH)}


@pytest.mark.parametrize(("away", "back"), [("kill", "start"), ("pause", "resume")])
def test_while_Redis_is_away_the_last_numbers_stand_and_up_is_0_until_it_is_back(
    new_fleet: Any, new_server: Callable[..., RedisServer], away: str, back: str
) -> None:
    server = new_server(appendonly="yes", appendfsync="always")
    fleet = new_fleet(server.url())
    keeper = Keeper(fleet.app)
    keeper.send_and_keep("fleet.healthy", 1)
    keeper.close()
    scraper = Scraper(fleet)
    scraper.await_that("up", is_=1)
    getattr(server, away)()
    seen = scraper.await_that("up", is_=0)
    assert seen["quarantine_messages", ("signal:9", "celery", "fleet.healthy")] == 1
    getattr(server, back)()
    scraper.await_that("up", is_=1)
    scraper.exporter.close()


def test_a_Redis_that_is_away_at_the_start_is_waited_for(
    new_fleet: Any, new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    fleet = new_fleet(server.url())
    server.kill()
    scraper = Scraper(fleet)
    seen = scraper.await_that("up", is_=0)
    assert ("candidates", ()) not in seen, "nothing is made up"
    server.start()
    assert scraper.await_that("up", is_=1)["candidates", ()] == 0
    scraper.exporter.close()


# --- bounded, escaped, once ----------------------------------------------------------------------------


def _alike(task: str, messages: int = 1) -> Alike:
    return Alike(task, "oom", "celery", "", messages, "sha")


def test_a_flood_of_names_becomes_one_series_and_no_message_is_left_out() -> None:
    rare = [_alike(f"task{number}") for number in range(5 * MAX_SERIES)]
    found = series([_alike("shop.render", 3), *rare])
    assert len(found) == MAX_SERIES
    assert found["shop.render", "oom", "celery"] == 3
    assert sum(found.values()) == 3 + 5 * MAX_SERIES
    assert found[OTHERS] == 4 * MAX_SERIES + 2


def test_a_name_of_megabytes_is_cut() -> None:
    ((task, _, _),) = series([_alike("x" * 1_000_000)])
    assert len(task) == MAX_NAME


def test_a_hostile_name_stays_one_label(scraper: Scraper, keeper: Keeper) -> None:
    name = 'x"} 1\nup 0\n\\ \u202e<script>'
    start = Start("R", "b.1", "w1@h/b", 7, 1, 1, 0, "i", name, "celery", 2, 5, 1, 1)
    keeper.ledger.quarantine.store("m", start, cause="oom", reason="", fields={"body": "x"})
    scraper.await_that("quarantine_messages", "oom", "celery", name, is_=1)


def test_an_unknown_cause_is_counted_among_the_others(scraper: Scraper, keeper: Keeper) -> None:
    counts = {"crashed:what ever": 2, "crashed:exit:-6": 1}
    keeper.ledger.client.hset(keeper.ledger.keys.counts, mapping=counts)
    seen = scraper.await_that("crashes_total", "(other)", is_=2)
    assert seen["crashes_total", ("exit:-6",)] == 1


def test_the_registry_of_the_process_is_the_default_and_takes_one_apps_metrics_once(
    fleet: Fleet, new_fleet: Any, new_redis_url: Callable[[], str]
) -> None:
    with register(fleet.app) as exporter:
        wait_until(lambda: b"celery_poison_up 1.0" in generate_latest(), what="in the default registry")
        assert register(fleet.app) is exporter
        with pytest.raises(ConfigurationError, match="already"):
            register(new_fleet(new_redis_url()).app)
    assert b"celery_poison" not in generate_latest(REGISTRY)


def test_a_port_serves_them_and_a_port_that_is_taken_is_said(scraper: Scraper) -> None:
    port = scraper.exporter.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        assert b"celery_poison_snapshot_errors_total" in answer.read()
    with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}"):
        scraper.exporter.serve(port)


def test_without_prometheus_client_the_cure_is_named(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"celery-poison\[metrics\]"):
        register(fleet.app)
