"""Redis restarts, with or without what it knew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.testing import RedisServer
from tests import PATIENCE
from tests.outage.conftest import BOTH_POOLS, Rewind, Site

NewSite = Callable[..., Site]
NewRedis = Callable[..., RedisServer]


@pytest.mark.parametrize("pool", BOTH_POOLS)
def test_EMS_8_a_ledger_that_has_forgotten_everything_is_told_again(
    new_site: NewSite, new_server: NewRedis, rabbit_url: str, pool: str
) -> None:
    ledger = new_server()
    site = new_site(rabbit_url, poison_redis_url=ledger.url())
    with site.worker("w1", pool) as w1, site.worker("w2", pool) as w2:
        w1.wait_ready(), w2.wait_ready()
        results = [site.send("where", n, 4) for n in range(4)]
        site.await_that(lambda: len(site.starts()) == 4, "all run")
        ledger.restart()
        site.await_that(lambda: site.on_record() == 4, "their starts are on record again")
        site.await_that(lambda: site.known_workers() == {"w1", "w2"}, "both workers are known again")
        assert not site.ends(), "this was to be seen while they run"
        assert {result.get(timeout=PATIENCE) for result in results} == {"w1@test", "w2@test"}
        site.await_that(lambda: site.on_record() == 0, "and forgotten when they were acknowledged")
        assert site.ran_once() and site.nobody_is_blamed()
        site.still_guards(w1, w2)
    assert not site.overlapped()


@pytest.mark.parametrize("appendfsync", ["everysec", pytest.param("always", marks=pytest.mark.matrix)])
def test_EMS_8_broker_and_ledger_restart_and_everything_runs_once(
    new_site: NewSite, new_server: NewRedis, appendfsync: str
) -> None:
    redis = new_server(appendonly="yes", appendfsync=appendfsync)
    site = new_site(redis.url(), backend_url=redis.url(1))
    with site.worker("w1") as w1, site.worker("w2") as w2:
        w1.wait_ready(), w2.wait_ready()
        long = [site.send("where", n, 5) for n in range(2)]
        site.await_that(lambda: len(site.starts()) == 2, "the long ones run")
        for n in range(100, 130):
            site.send("where", n, 0.1)
        site.await_that(lambda: len(site.ends()) > 3, "some are done")
        redis.restart()
        site.await_that(lambda: len(site.ends()) == 32, "the queue goes on")
        assert site.ran_once() and not site.overlapped()
        assert site.nobody_is_blamed()
        assert {site.result_of(result)[:1] for result in long} == {"w"}
        site.still_guards(w1, w2)


def test_EMS_1_a_worker_that_died_during_the_outage_is_recovered_from(
    new_site: NewSite, new_server: NewRedis
) -> None:
    redis = new_server(appendonly="yes")
    site = new_site(redis.url(), worker_prefetch_multiplier=1)
    with site.worker("w1", concurrency=1) as w1, site.worker("w2", concurrency=1) as w2:
        w1.wait_ready(), w2.wait_ready()
        sent = [site.send("where", n, 4) for n in range(2)]
        site.await_that(lambda: len(site.starts()) == 2, "both are busy")
        (doomed,) = site.on(w1)
        redis.kill()
        site.kill(w1)
        redis.start()
        assert [site.result_of(result) for result in sent] == ["w2@test"] * 2
        assert site.starts() == {doomed: 2, 1 - doomed: 1} and not site.overlapped()
        assert [e["id"] for e in site.events("crashed")] == [sent[doomed].id]
        assert [i.worker[:2] for i in site.quarantine.queries.incidents()] == ["w1"]
        site.await_that(lambda: not site.suspects(), "it is cleared")


@pytest.mark.parametrize(
    ("apart", "pool", "seconds", "noticed"),
    [
        (False, "threads", 8, "Connection to broker lost"),
        pytest.param(False, "prefork", 4, "Trying again in 4", marks=pytest.mark.matrix),
        (True, "prefork", 4, "Trying again in 4"),
    ],
    ids=["it runs on", "it ends meanwhile", "it ends meanwhile, and the ledger is elsewhere"],
)
def test_TP1_8_what_redis_hands_out_again_since_it_forgot_the_last_second_is_not_run_again(
    new_site: NewSite, new_server: NewRedis, apart: bool, pool: str, seconds: int, noticed: str
) -> None:
    """It comes as a first delivery: nothing on it says that it was ever delivered.

    It is looked up for one activation interval from the new connection on: here, longer than a busy machine
    needs.
    """
    redis = new_server(appendonly="yes")
    elsewhere = {"poison_redis_url": new_server().url()} if apart else {}
    site = new_site(redis.url(), poison_activation_interval=30.0, **elsewhere)
    for n in range(2, 10):
        site.send("where", n, 0.05)
    site.send("where", 1, seconds)
    lost = Rewind(redis)
    with site.worker("w1", pool) as w1, site.worker("w2", pool) as w2:
        w1.wait_ready(), w2.wait_ready()
        site.await_that(lambda: len(site.ends()) == 8 and len(site.starts()) == 9, "one is running")
        both = (w1, w2)
        lost.restart(lambda: site.await_that(lambda: all(noticed in w.log_text() for w in both), noticed))
        site.await_that(lambda: len(site.events("duplicate")) == 9, "all copies are recognised")
        site.await_that(lambda: site.ends()[1] == 1, "the long one ends")
        assert all(site.result_of(site.send("where", n, 0)) for n in (20, 21))
        assert site.ran_once() and site.nobody_is_blamed()


def test_EMS_8_a_start_that_redis_still_takes_for_running_has_ended(
    new_site: NewSite, new_server: NewRedis, redis_url: str
) -> None:
    """Otherwise it would be a strike for its message when the worker dies."""
    ledger = new_server(appendonly="yes")
    site = new_site(redis_url, poison_redis_url=ledger.url())
    queries = site.quarantine.queries
    with site.worker("w1") as w1, site.worker("w2", queues=["nothing"]) as w2:
        w1.wait_ready(), w2.wait_ready()
        site.send("where", 1, 1)
        site.await_that(lambda: site.on_record() == 1, "it runs")
        lost = Rewind(ledger)
        site.await_that(lambda: site.on_record() == 0, "it has ended and is forgotten")
        lost.restart()
        site.await_that(lambda: site.known_workers() == {"w1", "w2"}, "the workers are back")
        site.await_that(
            lambda: {s.token for _, s, _ in queries.running()} <= site.done(), "told that it ended"
        )
        site.kill(w1)
        site.await_that(lambda: site.events("worker_lost"), "it died")
        site.await_that(lambda: not queries.open_incidents(), "and was recovered from")
    assert not site.events("crashed") and site.ran_once()


@pytest.mark.matrix
def test_TP1_8_a_worker_that_starts_beside_a_restarted_redis_runs_nothing_again(
    new_site: NewSite, new_server: NewRedis
) -> None:
    redis = new_server(appendonly="yes")
    site = new_site(redis.url(), poison_activation_interval=10.0)
    assert site.worker("w0").start().wait_ready().stop() == 0, "the ledger has a past"
    site.send("where", 1, 12)
    lost = Rewind(redis)
    with site.worker("w1") as w1:
        site.await_that(lambda: site.starts()[1] == 1, "it runs")
        lost.restart(lambda: site.await_that(lambda: "Trying again in 4" in w1.log_text(), "it is away"))
        with site.worker("w2") as w2:
            w2.wait_ready()
            site.await_that(lambda: site.ends()[1] == 1, "it ends")
            site.await_that(lambda: not site.on_record(), "its copy is recognised")
    assert site.ran_once()


def test_TP1_8_poison_that_went_to_quarantine_in_the_second_that_redis_lost_is_delivered_again(
    new_site: NewSite, new_server: NewRedis
) -> None:
    """Its entry is lost with the acknowledgement: to acknowledge it once more would lose the message."""
    redis = new_server(appendonly="yes")
    site = new_site(redis.url(), poison_max_crashes=1)

    def kept() -> list[str]:
        return [record.id for record in site.quarantine.list()]

    with site.worker("w1") as w1:
        w1.wait_ready()
        sent = site.send("hard_limit", 1)
        site.await_that(lambda: site.starts("hard_limit")[1] == 1, "it runs, and is not acknowledged")
        lost = Rewind(redis)
        site.await_that(lambda: kept() == [sent.id], "it is in quarantine")
        site.await_that(lambda: "is in quarantine now" in w1.log_text(), "and the worker knows it")
        lost.restart(lambda: site.await_that(lambda: "Connection to broker lost" in w1.log_text(), "noticed"))
        site.await_that(lambda: site.starts("hard_limit")[1] >= 2, "it came again")
        site.await_that(lambda: kept() == [sent.id], "and is in quarantine again")
