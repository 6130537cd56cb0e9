"""A worker's broker connection breaks while its tasks run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from celery_poison.testing import RedisServer
from celery_poison.worker.inflight import DELAY
from tests.harness.servers import RabbitServer
from tests.outage.conftest import BOTH_POOLS, Site

NewSite = Callable[..., Site]


@pytest.fixture
def break_it(request: pytest.FixtureRequest, broker_url: str) -> Callable[[], object]:
    """Closes everybody's broker connections, from the broker's side."""
    if broker_url.startswith("redis"):
        return lambda: _kill_clients(request.getfixturevalue("redis_server"), broker_url)
    rabbit: RabbitServer = request.getfixturevalue("rabbit_server")
    vhost = broker_url.rpartition("/")[2]
    return lambda: rabbit.ctl("close_all_connections", "--vhost", vhost, "test")


def _kill_clients(server: RedisServer, url: str) -> None:
    database = url.rpartition("/")[2]
    with server.client() as client:
        for row in client.client_list(_type="normal"):
            if row["db"] == database:
                with suppress(redis.ResponseError):
                    client.client_kill_filter(_id=row["id"])


@pytest.mark.parametrize("pool", BOTH_POOLS)
@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_TP1_8_nothing_runs_twice_because_the_broker_delivered_it_again(
    new_site: NewSite,
    new_redis_url: Callable[[], str],
    broker_url: str,
    break_it: Callable[[], object],
    pool: str,
) -> None:
    apart: dict[str, Any] = {}
    if not broker_url.startswith("redis"):
        # Celery itself may hang otherwise: its pool's threads wait for RabbitMQ on the loop's connection.
        apart = {"poison_redis_url": new_redis_url(), "worker_enable_prefetch_count_reduction": False}
    site = new_site(broker_url, **apart)
    with site.worker("w1", pool) as w1, site.worker("w2", pool) as w2:
        w1.wait_ready(), w2.wait_ready()
        sent = [site.send("where", n, 5) for n in range(4)]
        site.await_that(lambda: len(site.starts()) == 4, "all run")
        for n in range(10, 20):
            site.send("where", n, 0.1)
        break_it()
        site.await_that(lambda: len(site.ends()) == 14, "everything is done")
        site.await_that(site.is_over, "all ends are known, so that copies are recognised")
        assert {site.result_of(result)[:1] for result in sent} == {"w"}
        assert all(site.result_of(site.send("where", n, 0)) for n in range(20, 24)), "after the copies"
        assert site.ran_once() and site.nobody_is_blamed()


def _messages(server: RabbitServer, url: str) -> int:
    """Return the number of messages in the broker's queues, waiting or delivered."""
    told = server.ctl("list_queues", "-p", url.rpartition("/")[2], "messages")
    return sum(int(word) for word in told.split() if word.isdigit())


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_8_nothing_runs_twice_because_an_event_loop_hung_when_its_connection_went(
    new_site: NewSite,
    new_redis_url: Callable[[], str],
    rabbit_server: RabbitServer,
    broker_url: str,
    break_it: Callable[[], object],
) -> None:
    """The pool's threads went on, and nobody could tell that the broker never heard of their ends."""
    apart = {"poison_redis_url": new_redis_url(), "worker_enable_prefetch_count_reduction": False}
    site = new_site(broker_url, **apart)
    with site.worker("w1", "threads", concurrency=4) as w1:
        w1.wait_ready()
        for n in range(4):
            site.send("where", n, 1)
        site.await_that(lambda: len(site.starts()) == 4, "all run")
        site.app.control.broadcast("hang", arguments={"seconds": 1 + 3 * DELAY})
        site.await_that(lambda: site.marks.all("loop"), "its event loop hangs")
        break_it()
        site.await_that(lambda: len(site.ends()) == 4, "the pool went on")
        site.await_that(
            lambda: not _messages(rabbit_server, broker_url), "it is back, and has had the copies"
        )
        assert site.ran_once() and site.nobody_is_blamed()
