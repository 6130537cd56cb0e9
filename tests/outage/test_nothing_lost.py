"""Whatever a worker holds when it loses Redis is run, once, and nothing of it stays on record (NEW-9)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from celery_poison.model import Phase
from celery_poison.testing import RedisServer
from tests import sampled
from tests.outage.conftest import Site

NewSite = Callable[..., Site]
NewRedis = Callable[..., RedisServer]

#: Loses nothing when it is killed.
LASTING = {"appendonly": "yes", "appendfsync": "always"}
#: What Celery says some seconds after it lost its connection.
TRIES = "Trying again in 4"
PREFORK = pytest.param("prefork", marks=pytest.mark.matrix)


@pytest.mark.parametrize("pool", ["threads", PREFORK])
def test_NEW_9_what_was_in_the_pool_and_had_not_begun_when_redis_went_runs_once(
    new_site: NewSite, new_server: NewRedis, pool: str
) -> None:
    """While Redis is away, the pool has time for more: that must not begin, since it goes back."""
    redis = new_server(**LASTING)
    site = new_site(redis.url(), poison_redis_url=new_server().url(), worker_prefetch_multiplier=8)
    with site.worker("w1", pool, concurrency=1) as w1:
        w1.wait_ready()
        for n in range(6):
            site.send("where", n, 1.5)
        site.await_that(lambda: redis.client().hlen("unacked") == 6, "all received")
        site.await_that(lambda: site.starts(), "one runs")
        redis.kill()
        site.await_that(lambda: TRIES in w1.log_text(), "it has been away for a while")
        redis.start()
        site.await_that(lambda: len(site.ends()) == 6, "all are done")
        site.await_that(lambda: not redis.client().hlen("unacked"), "and acknowledged")
        assert not redis.client().llen("celery")
        assert site.ran_once() and site.nobody_is_blamed()


@pytest.mark.matrix
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_NEW_9_after_restarts_of_redis_the_ledger_empties_itself_while_its_workers_live(
    new_site: NewSite, new_server: NewRedis, pool: str
) -> None:
    redis = new_server(**LASTING)
    site = new_site(redis.url(), backend_url=redis.url(1))
    with site.worker("w1", pool, 4) as w1, site.worker("w2", pool, 4) as w2:
        w1.wait_ready(), w2.wait_ready()
        for turn in range(2):
            first, last = 60 * turn, 60 * turn + 60
            for n in range(first, last):
                site.send("where", n, 0.1)
            site.await_that(lambda: len(site.ends()) > first + 20, "they run")  # noqa: B023
            redis.kill()
            redis.start()
            site.await_that(lambda: len(site.ends()) == last, "all are done")  # noqa: B023
        # An end that crossed with a restart waits for a copy, which may not come; each slot has one.
        site.await_that(
            lambda: site.is_over() and site.on_record() <= 8 and len(site.done()) <= 8,
            "next to nothing stays on record",
        )
        site.await_that(lambda: not redis.client().hlen("unacked"), "and nothing unacknowledged")
        assert w1.is_alive() and w2.is_alive()
        assert not [*site.quarantine.queries.parked()] and site.nobody_is_blamed()


@pytest.mark.parametrize("pool", ["threads", PREFORK])
def test_NEW_9_a_worker_that_leaves_while_redis_is_away_is_recovered_from(
    new_site: NewSite, new_server: NewRedis, pool: str
) -> None:
    """It cannot give back what it holds: so it says no farewell, and others put that back."""
    redis = new_server(**LASTING)
    site = new_site(redis.url(), poison_redis_url=new_server().url(), worker_prefetch_multiplier=8)
    with site.worker("w2", queues=["nothing"]) as w2:
        w2.wait_ready()
        with site.worker("w1", pool, concurrency=1) as w1:
            w1.wait_ready()
            for n in range(4):
                site.send("where", n, 1.0)
            site.await_that(lambda: redis.client().hlen("unacked") == 4, "all received")
            redis.kill()
            with suppress(ProcessLookupError):
                os.kill(w1.main_pid, signal.SIGTERM)
            site.await_that(lambda: not w1.is_alive(), "it has left")
        redis.start()
        site.await_that(lambda: site.events("worker_lost"), "it is taken for dead")
        with site.worker("w3", concurrency=1) as w3:
            w3.wait_ready()
            site.await_that(lambda: len(site.ends()) == 4, "others run what it held")
            site.await_that(lambda: not redis.client().hlen("unacked"), "and nothing is left")
    assert not site.events("crashed", "quarantined") and not site.overlapped()


def test_NEW_9_workers_outlive_the_restarts_of_redis(new_site: NewSite, new_server: NewRedis) -> None:
    """kombu's AttributeError, while it closed a lost connection, ended them."""
    redis = new_server(**LASTING)
    site = new_site(redis.url(), backend_url=redis.url(1))
    with site.worker("w1", "threads", 4) as w1:
        w1.wait_ready()
        for turn in range(4):
            for n in range(10 * turn, 10 * turn + 10):
                site.send("where", n, 0.2)
            site.await_that(lambda: len(site.starts()) > 10 * turn + 2, "they run")  # noqa: B023
            redis.kill()
            redis.start()
            site.await_that(lambda: len(site.ends()) == 10 * turn + 10, "all are done")  # noqa: B023
        assert w1.is_alive() and "AttributeError" not in w1.log_text()
        assert "Unrecoverable error" not in w1.log_text() and site.nobody_is_blamed()


@pytest.mark.parametrize("pool", sampled(["threads", "solo"], ["gevent", "prefork"]))
@pytest.mark.parametrize("apart", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_NEW_9_what_ended_and_could_not_store_its_result_is_settled(
    new_site: NewSite, new_server: NewRedis, pool: str, *, apart: bool
) -> None:
    """Celery's tracer raises then, and most pools tell nobody: it would be held for ever."""
    broker = new_server(**LASTING)
    backend = new_server() if apart else broker
    site = new_site(broker.url(), backend_url=backend.url())
    with site.worker("w1", pool, concurrency=1) as w1:
        w1.wait_ready()
        site.send("gated", 1)
        site.await_that(lambda: site.starts("gated"), "it runs")
        backend.kill()
        site.marks.open_gate()
        if not apart:
            site.await_that(lambda: "outside body" in w1.log_text() and site.heard_for(2), "it has raised")
            broker.start()
        site.await_that(lambda: not broker.client().hlen("unacked"), "it is acknowledged")
        # Where the broker was lost, too, its end waits for a copy, which may not come.
        site.await_that(lambda: site.is_over() and (not apart or not site.done()), "it has ended on record")
        assert w1.is_alive() and not broker.client().llen("celery")
        assert site.ran_once("gated") and site.nobody_is_blamed()


def test_NEW_9_a_message_that_waits_for_a_place_in_the_pool_is_not_being_received_any_more(
    new_site: NewSite, redis_url: str
) -> None:
    """Celery hands it over while greenlets have no place: in that phase it would be convicted of what another
    does to its worker."""
    site = new_site(redis_url)
    with site.worker("w1", "gevent", concurrency=1) as w1:
        w1.wait_ready()
        site.send("gated", 1)
        site.await_that(lambda: site.starts("gated"), "the pool is full")
        waits = site.send("where", 1, 0, compression="zlib")

        def phase() -> str:
            running = {start.id: start.phase for _, start, _ in site.quarantine.queries.running()}
            return running.get(waits.id, "")

        site.await_that(phase, "it was received")
        site.await_that(lambda: phase() == Phase.CLAIMED, "its admit mark is closed")
        assert not site.starts(), "it waits"
        site.marks.open_gate()
        site.await_that(lambda: site.ends(), "it runs")
    assert site.ran_once()
