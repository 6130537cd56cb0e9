"""The broker's Redis goes away and comes back with everything it had."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_poison.testing import RedisServer, wait_until
from tests import sampled
from tests.apps.harness import Fleet


@pytest.fixture
def lasting_redis() -> Iterator[RedisServer]:
    with RedisServer(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads"]))
def test_EMS_6_what_was_prefetched_runs_after_redis_came_back(
    new_fleet: Callable[..., Fleet], lasting_redis: RedisServer, pool: str
) -> None:
    """Its visibility timeout is an hour: nobody waits for that."""
    fleet = new_fleet(lasting_redis.url(), worker_prefetch_multiplier=8)
    broker = lasting_redis.client()
    with fleet.worker(pool=pool, concurrency=1, defaults=True) as worker:
        worker.wait_ready()
        for n in range(6):
            fleet.send("healthy", n, 1.0)
        wait_until(lambda: broker.hlen("unacked") == 6, what="all received")
        lasting_redis.restart()
        wait_until(
            lambda: len(fleet.marks.count("healthy", "end")) == 6,
            what=lambda: f"all done\n{fleet.log_text()[-6000:]}",
        )
    assert set(fleet.marks.count("healthy", "start").values()) == {1}
