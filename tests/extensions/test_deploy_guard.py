"""A new version's first runs of each task go alone; what they kill is paused for that version (NEW-18)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.basics import procfs
from celery_poison.cells.watcher import NURSERY
from celery_poison.desk.survey import overview
from celery_poison.flower.act_pages import held_back
from celery_poison.metrics.families import FAMILIES
from celery_poison.testing import RedisServer
from tests import PATIENCE, sampled
from tests.extensions.shop import Shop

(PAUSED,) = (family for family in FAMILIES if family.name == "tasks_paused_for_version")


@pytest.fixture
def new_shop(assemble: Callable[..., Shop]) -> Callable[..., Shop]:
    def build(broker_url: str, **settings: Any) -> Shop:
        # So that nothing waits for too long on a machine that has much else to do.
        patient = {"poison_deploy_guard": True, "poison_deploy_guard_wait": 600, **settings}
        return assemble(Shop, broker_url, **patient)

    return build


@pytest.fixture
def shop(new_shop: Callable[..., Shop], broker_url: str) -> Shop:
    return new_shop(broker_url)


def _is_paused(shop: Shop, waiting: int) -> Callable[[], bool]:
    return lambda: bool(shop.quarantine.pauses()) and shop.parked() == waiting


@pytest.mark.parametrize(
    ("pool", "broker_url"),
    sampled(
        [("prefork", "redis")],
        [
            ("threads", "rabbitmq"),
            ("prefork", "rabbitmq"),
            ("threads", "redis"),
            ("solo", "redis"),
            ("gevent", "redis"),
        ],
    ),
    indirect=["broker_url"],
)
def test_NEW_18_a_task_that_kills_two_first_runs_is_paused_until_a_newer_version_comes(
    shop: Shop, pool: str
) -> None:
    sent = [shop.send("convert", n) for n in range(20)]
    with shop.of("bad-1", pool=pool, concurrency=1 if pool == "solo" else 2):
        others = [shop.send("thumb", n) for n in range(20)]
        assert [result.get(timeout=PATIENCE) for result in others] == [*range(20)], "no queue stops"
        shop.await_that(_is_paused(shop, 20), "all wait, also those that died")
        assert len(set(shop.runs("convert", "bad-1"))) == 2 == len(shop.runs("convert", "bad-1"))
        assert not shop.quarantine.list(), "no conviction: the version is to blame"
        (pause,) = shop.quarantine.pauses()
        assert (pause.scope, pause.name, pause.version) == ("version", "fleet.convert", "bad-1")
        assert pause.note.startswith("SIGSEGV, ") and "shop.py:" in pause.note
        seen = overview(shop.app)
        sentence = f"bad-1 kills fleet.convert ({pause.note}): paused, 20 messages wait untouched"
        assert sentence in seen.verdict and any("resume --task fleet.convert" in line for line in seen.next)
        assert PAUSED.read(None, seen) == 1
        (line,) = held_back(seen)
        assert (line.kind, line.name, line.note) == ("version", "fleet.convert", pause.note)
    with shop.of("good-2", name="w2", pool=pool):
        assert sorted(result.get(timeout=PATIENCE) for result in sent) == [*range(20)]
        shop.await_that(lambda: not shop.quarantine.pauses(), "nothing runs the version any more")
    (paused,) = shop.events("paused")
    assert (paused["task"], paused["release"], paused["cause"]) == ("fleet.convert", "bad-1", "signal:11")
    (resumed,) = shop.events("resumed")
    assert resumed["release"] == "bad-1" and "no worker runs that" in resumed["note"]


def test_NEW_18_a_person_resumes_a_paused_task_and_it_runs_as_ever(shop: Shop) -> None:
    sent = [shop.send("convert", n) for n in range(8)]
    with shop.of("bad-1"):
        shop.await_that(_is_paused(shop, 8), "paused")
        shop.marks.repair()
        (over,) = shop.quarantine.resume_task("fleet.convert", note="the library is back")
        assert over.version == "bad-1"
        assert sorted(result.get(timeout=PATIENCE) for result in sent) == [*range(8)]
        assert shop.send("convert", 9).get(timeout=PATIENCE) == 9
    assert not shop.quarantine.list(candidates=True)


@pytest.mark.matrix
def test_NEW_18_workers_of_the_older_version_go_on_with_a_paused_task(shop: Shop) -> None:
    with shop.of("bad-2"):
        sent = [shop.send("convert", n) for n in range(8)]
        shop.await_that(_is_paused(shop, 8), "paused")
        with shop.of("good-1", name="w2"):
            sent += [shop.send("convert", n) for n in range(8, 16)]
            assert sorted(result.get(timeout=PATIENCE) for result in sent) == [*range(16)]
            assert len(shop.runs("convert", "bad-2")) == 2 and shop.quarantine.pauses(), "it stays paused"


@pytest.mark.matrix
def test_NEW_18_one_death_among_runs_that_end_alive_pauses_nothing_and_every_third_does(
    new_shop: Callable[..., Shop], broker_url: str
) -> None:
    shop = new_shop(broker_url)
    with shop.of("odd"):
        sent = [shop.send("thumb", n) for n in range(30)]
        for n in range(30):
            shop.send("third", n)
        shop.await_that(_is_paused(shop, 26), "four ended alive, two died")
        assert [result.get(timeout=PATIENCE) for result in sent] == [*range(30)]
        assert [pause.name for pause in shop.quarantine.pauses()] == ["fleet.third"]
        assert len(shop.runs("third", "odd")) == 6


def test_NEW_18_neither_a_poison_that_is_sent_twice_nor_one_that_was_convicted_before_pauses_its_task(
    shop: Shop,
) -> None:
    shop.send("picky", 14)
    with shop.worker():
        shop.await_that(shop.quarantine.list, "convicted before there was a version")
    before = len(shop.events("crashed"))
    with shop.of("good-1", name="w2"):
        for n in (13, 13, 14):
            shop.send("picky", n)
        shop.await_that(lambda: len(shop.events("crashed")) == before + 3, "each has died once")
        assert [shop.send("picky", n).get(timeout=PATIENCE) for n in range(6)] == [*range(6)]
        shop.await_that(lambda: len(shop.quarantine.list()) == 4, "all are convicted by their own deaths")
    assert not shop.events("paused") and not shop.quarantine.pauses()


def test_NEW_18_others_wait_only_for_a_while_and_go_on_as_ever(
    new_shop: Callable[..., Shop], broker_url: str
) -> None:
    shop = new_shop(broker_url, poison_deploy_guard_wait=2)
    with shop.of("slow", pool="threads", concurrency=8):
        sent = [shop.send("waits", n) for n in range(6)]
        shop.await_that(lambda: shop.runs("waits", "slow"), "the first one runs")
        shop.await_that(lambda: len(shop.runs("waits", "slow")) == 6, "the others begin beside it")
        shop.marks.open_gate()
        assert sorted(result.get(timeout=PATIENCE) for result in sent) == [*range(6)]
    assert "waited for 2 s" in shop.log_text() and not shop.quarantine.pauses()


@pytest.mark.matrix
def test_NEW_18_the_death_of_a_worker_takes_no_turn_along(shop: Shop) -> None:
    with shop.of("one") as worker:
        sent = [shop.send("waits", n) for n in range(3)]
        shop.await_that(lambda: shop.runs("waits", "one"), "the first one runs")
        shop.await_that(lambda: shop.parked() == 2, "the others wait")
        worker.kill_group()
        shop.marks.open_gate()
        with shop.of("one", name="w2"):
            assert sorted(result.get(timeout=PATIENCE) for result in sent) == [0, 1, 2]
    assert "waited for" not in shop.log_text() and not shop.quarantine.pauses()


@pytest.mark.matrix
def test_NEW_18_without_a_version_the_guard_is_off_and_says_so(shop: Shop) -> None:
    with shop.worker():
        assert [shop.send("thumb", n).get(timeout=PATIENCE) for n in range(3)] == [0, 1, 2]
    assert "poison_deploy_guard is off: poison_code_version is not set" in shop.log_text()


def test_NEW_18_tasks_go_on_while_the_ledger_is_away(
    new_shop: Callable[..., Shop], redis_url: str, new_server: Callable[..., RedisServer]
) -> None:
    ledger = new_server()
    shop = new_shop(redis_url, poison_redis_url=ledger.url())
    with shop.of("one") as worker:
        worker.wait_ready()
        ledger.stop()
        sent = [shop.send("thumb", n) for n in range(6)]
        assert [result.get(timeout=PATIENCE) for result in sent] == [*range(6)]
        ledger.start()
        shop.await_that(shop.quarantine.queries.leases, "it is back")
        assert shop.send("thumb", 6).get(timeout=PATIENCE) == 6


@pytest.mark.matrix
def test_NEW_18_where_no_cell_can_be_made_tasks_run_as_ever_and_the_log_says_so(shop: Shop) -> None:
    with shop.of("one", pool="threads") as worker:
        worker.wait_ready()
        for pid in shop.survivors():
            if procfs.name(pid) == NURSERY:
                os.kill(pid, signal.SIGKILL)
        assert [shop.send("thumb", n).get(timeout=PATIENCE) for n in range(6)] == [*range(6)]
    assert "the deploy guard holds nothing back here: this worker can make no cell" in shop.log_text()
