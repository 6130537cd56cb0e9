"""One worker is cut off from a Redis that everybody else reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from celery_poison.testing import RedisServer, Worker
from tests.harness.proxy import TcpProxy
from tests.outage.conftest import BOTH_POOLS, Site

NewSite = Callable[..., Site]


@pytest.fixture
def redis(new_server: Callable[..., RedisServer]) -> RedisServer:
    return new_server()


@pytest.fixture
def proxy(redis: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", redis.port) as proxy:
        yield proxy


@pytest.fixture
def site(new_site: NewSite, redis: RedisServer) -> Site:
    return new_site(redis.url())


def cut_off(site: Site, proxy: TcpProxy, pool: str = "prefork") -> Worker:
    """The worker whose only way to Redis is the proxy."""
    return site.worker("far", pool, env={"BROKER_URL": proxy.url(site.broker_url)})


@pytest.mark.parametrize("pool", BOTH_POOLS)
def test_EMS_8_what_a_frozen_partition_holds_runs_elsewhere_and_its_late_end_counts_for_nothing(
    site: Site, proxy: TcpProxy, pool: str
) -> None:
    with cut_off(site, proxy, pool) as far:
        far.wait_ready()
        sent = site.send("where", 1, 12)
        site.await_that(lambda: site.on(far) == [1], "it runs there")
        with site.worker("near") as near:
            near.wait_ready()
            proxy.freeze()
            site.await_that(lambda: site.starts()[1] == 2, "taken for dead, and run elsewhere")
            proxy.heal()
            site.await_that(lambda: "was taken for dead" in far.log_text(), "it learns of that")
            assert site.result_of(sent) == "near@test"
            assert not site.events("crashed"), "nobody died"
            site.await_that(lambda: not site.suspects(), "nothing is held against it")
            site.await_that(lambda: site.known_workers() == {"far", "near"}, "it is back, under a new name")
        assert site.result_of(site.send("where", 2, 0)) == "far@test"
        assert site.result_of(sent) == "near@test", "and stays what it was"
    assert site.starts()[1] == 2


def test_EMS_2_a_cut_off_worker_is_believed_dead_and_the_strike_is_taken_back_when_it_returns(
    site: Site, proxy: TcpProxy
) -> None:
    with cut_off(site, proxy) as far, site.worker("witness", queues=["nothing"]) as witness:
        far.wait_ready(), witness.wait_ready()
        sent = site.send("where", 1, 8)
        site.await_that(lambda: site.on(far) == [1], "it runs there")
        proxy.cut()
        site.await_that(lambda: site.events("crashed"), "a strike for what was running there")
        assert [i.how for i in site.quarantine.queries.incidents()] == ["gone"]
        assert not site.ends(), "before it ended"
        proxy.heal()
        site.await_that(lambda: site.events("cleared"), "the strike is taken back")
        assert not site.ends(), "as soon as its worker is back"
        assert site.result_of(sent) == "far@test"
        site.await_that(lambda: not site.on_record(), "its copy is recognised")
        assert site.ran_once(), site.evidence()
        assert not site.suspects() and not site.events("quarantined")
        assert site.result_of(site.send("where", 2, 0)) == "far@test"


@pytest.mark.parametrize("pool", BOTH_POOLS)
def test_EMS_2_connections_that_were_cut_once_are_no_incident(site: Site, proxy: TcpProxy, pool: str) -> None:
    with cut_off(site, proxy, pool) as far, site.worker("near", queues=["nothing"]) as near:
        far.wait_ready(), near.wait_ready()
        for n in range(2):
            site.send("where", n, 5)
        site.await_that(lambda: len(site.starts()) == 2, "they run")
        for n in range(10, 14):
            site.send("where", n, 0.1)
        proxy.drop_connections()
        site.await_that(lambda: len(site.ends()) == 6, "everything is done")
        site.await_that(site.is_over, "all ends are known, so that copies are recognised")
        assert site.result_of(site.send("where", 2, 0)) == "far@test", "after the copies"
        assert site.ran_once() and site.nobody_is_blamed()


@pytest.mark.parametrize("pool", BOTH_POOLS)
def test_NEW_8_processes_leave_a_connection_to_the_ledger_that_leads_nowhere(
    new_site: NewSite, redis: RedisServer, proxy: TcpProxy, pool: str
) -> None:
    site = new_site(redis.url(), poison_activation_interval=60.0)
    with site.worker("far", pool, env={"POISON_REDIS_URL": proxy.url(site.broker_url)}) as far:
        far.wait_ready()
        assert site.result_of(site.send("where", 1, 0)) == "far@test", "its process is connected"
        proxy.strand()
        numbers = count(2)

        def is_guarded() -> bool:
            sent = site.send("where", n := next(numbers), 0.5)
            site.await_that(lambda: bool(site.starts()[n]), "tasks run")
            is_on_record = sent.id in {start.id for _, start, _ in site.quarantine.queries.running()}
            site.result_of(sent)
            return is_on_record

        site.await_that(lambda: all(is_guarded() for _ in range(4)), "what runs is on record again")
        assert site.nobody_is_blamed()
