"""Redis hangs: its connections stand, and nothing answers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from celery_poison.testing import RedisServer
from tests.outage.conftest import ACTIVATION, BOTH_POOLS, Site

NewSite = Callable[..., Site]
NewRedis = Callable[..., RedisServer]

#: Longer than any lease lives.
LONG = 2 * ACTIVATION


def test_EMS_1_nobody_is_buried_for_the_heartbeats_that_a_hanging_ledger_did_not_hear(
    new_site: NewSite, new_server: NewRedis, rabbit_url: str
) -> None:
    ledger = new_server()
    site = new_site(rabbit_url, poison_redis_url=ledger.url())
    with site.worker("w1") as w1, site.worker("w2", "threads") as w2:
        w1.wait_ready(), w2.wait_ready()
        site.await_that(lambda: site.known_workers() == {"w1", "w2"}, "both are known")
        for n in range(2):
            site.send("where", n, LONG + 2)
        site.await_that(lambda: len(site.starts()) == 2, "two run")
        ledger.pause()
        began = time.monotonic()
        for n in range(10, 20):
            site.send("where", n, 0)
        site.await_that(lambda: len(site.ends()) == 10, "others run unguarded meanwhile")
        site.await_that(lambda: time.monotonic() - began > LONG, "it hangs for long")
        ledger.resume()
        site.await_that(lambda: len(site.ends()) == 12, "the long ones end")
        site.await_that(lambda: site.heard_for(2 * ACTIVATION), "everybody had time to be declared dead")
        assert site.ran_once() and site.nobody_is_blamed()
        site.still_guards(w1, w2)


@pytest.mark.parametrize("pool", BOTH_POOLS)
def test_EMS_1_nobody_is_buried_when_the_broker_hangs_with_the_ledger(
    new_site: NewSite, new_server: NewRedis, pool: str
) -> None:
    redis = new_server()
    site = new_site(redis.url())
    with site.worker("w1", pool) as w1, site.worker("w2", pool) as w2:
        w1.wait_ready(), w2.wait_ready()
        site.await_that(lambda: site.known_workers() == {"w1", "w2"}, "both are known")
        for n in range(4):
            site.send("where", n, LONG + 2)
        site.await_that(lambda: len(site.starts()) == 4, "all run")
        redis.pause()
        began = time.monotonic()
        site.await_that(lambda: time.monotonic() - began > LONG, "it hangs for long")
        redis.resume()
        site.await_that(lambda: len(site.ends()) == 4, "they end")
        site.await_that(lambda: site.heard_for(2 * ACTIVATION), "everybody had time to be declared dead")
        assert site.ran_once() and site.nobody_is_blamed()
        assert all(site.result_of(site.send("where", n, 0)) for n in (10, 11))
        assert w1.is_alive() and w2.is_alive()
