"""The deploy guard, ``rerun=False`` and ``tell="conviction"`` at once, and bad luck (NEW-16, NEW-17, NEW-18).

Whatever happens, a mail is sent once, or is kept and its caller knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_poison.errors import Quarantined
from celery_poison.testing import RedisServer
from tests.extensions.shop import Shop

pytestmark = pytest.mark.matrix

MAILS = 8
BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


@pytest.fixture
def new_shop(assemble: Callable[..., Shop]) -> Callable[..., Shop]:
    def build(broker_url: str, **settings: Any) -> Shop:
        return assemble(Shop, broker_url, poison_deploy_guard=True, poison_deploy_guard_wait=600, **settings)

    return build


@pytest.fixture
def shop(new_shop: Callable[..., Shop], broker_url: str) -> Shop:
    return new_shop(broker_url)


def _all_are_told(shop: Shop, sent: list[AsyncResult], kept: Collection[int]) -> None:
    """Wait until each caller knows; no mail has run twice, and those that are kept are those that failed."""
    shop.await_that(lambda: all(result.ready() for result in sent), "each caller knows")
    starts = [mark.n for mark in shop.marks.all("mail", "start")]
    assert sorted(starts) == [*range(len(sent))], "each ran once"
    failed = {result.id for result in sent if result.state == "FAILURE"}
    assert all(isinstance(result.result, Quarantined) for result in sent if result.id in failed)
    assert {record.id for record in shop.quarantine.list()} == failed and len(failed) in kept
    shop.await_that(lambda: shop.parked() == 0, "nothing waits")


def _waits(shop: Shop, parked: int) -> None:
    shop.await_that(lambda: shop.runs("mail", "slow"), "the first one runs")
    shop.await_that(lambda: shop.parked() == parked, "the others wait")


@BOTH
def test_a_worker_that_is_killed_while_others_wait_in_the_ledger_loses_none_and_sends_none_twice(
    shop: Shop,
) -> None:
    with shop.of("slow") as worker:
        sent = [shop.send("mail", n) for n in range(MAILS)]
        _waits(shop, MAILS - 1)
        shop.await_that(lambda: len([*shop.quarantine.queries.running()]) == 1, "on record")
        worker.kill_group()
    shop.marks.open_gate()
    with shop.of("slow", name="w2"):
        _all_are_told(shop, sent, kept={1})
    assert not shop.quarantine.pauses(), "a worker that was killed says nothing of a version"


@BOTH
def test_a_version_that_kills_keeps_two_tells_their_callers_and_the_next_version_sends_the_others(
    shop: Shop,
) -> None:
    sent = [shop.send("mail", n) for n in range(MAILS)]
    for version, name in (("bad-1", "w1"), ("good-2", "w2"), ("bad-1", "w3"), ("good-2", "w4")):
        with shop.of(version, name=name) as worker:
            worker.wait_ready()
            if name == "w1":
                shop.await_that(lambda: len(shop.quarantine.list()) == 2, "two are kept")
                shop.await_that(lambda: shop.parked() == MAILS - 2, "the others wait")
                shop.await_that(shop.quarantine.pauses, "it is paused")
                (pause,) = shop.quarantine.pauses()
                assert (pause.name, pause.version) == ("fleet.mail", "bad-1")
            if name == "w4":
                # Its pause ends with its last worker: its next one may kill two more.
                _all_are_told(shop, sent, kept={2, 3, 4})


def test_where_one_worker_tells_no_version_it_runs_what_is_paused_for_another(shop: Shop) -> None:
    sent = [shop.send("mail", n) for n in range(MAILS)]
    with shop.of("bad-1"):
        shop.await_that(lambda: len(shop.quarantine.list()) == 2, "two are kept")
        with shop.of("", name="w2"):
            _all_are_told(shop, sent, kept={2})
    assert len(shop.runs("mail", "bad-1")) == 2


def test_while_the_ledger_is_away_during_first_runs_mails_wait_and_each_is_sent_once(
    new_shop: Callable[..., Shop], redis_url: str, new_server: Callable[..., RedisServer]
) -> None:
    ledger = new_server(appendonly="yes", appendfsync="always")
    shop = new_shop(redis_url, poison_redis_url=ledger.url())
    with shop.of("slow"):
        sent = [shop.send("mail", n) for n in range(3)]
        _waits(shop, 2)
        ledger.kill()
        shop.marks.open_gate()
        sent += [shop.send("mail", n) for n in range(3, MAILS)]
        sent[0].get(timeout=60)
        assert shop.send("thumb", 1).get(timeout=60) == 1, "others go on"
        assert len(shop.marks.all("mail", "start")) == 1
        ledger.start()
        _all_are_told(shop, sent, kept={0})
