"""A broker behind Redis Sentinel: receiving, renewing, sweeping and putting back go to its master."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_poison.broker.renewal import Renewal
from celery_poison.testing import RedisServer, wait_until
from tests.broker.kit import Site
from tests.harness.servers import MASTER_NAME, SentinelServer

NewSite = Callable[..., Site]


@pytest.fixture
def sentinel_url(redis_server: RedisServer) -> Iterator[str]:
    """A Sentinel that knows the test run's server."""
    with SentinelServer(redis_server) as sentinel:
        wait_until(lambda: sentinel.has_master(redis_server.port), what="the Sentinel knows its master")
        yield f"sentinel://127.0.0.1:{sentinel.port}"


def test_EMS_6_putting_back_and_renewing_work_through_a_sentinel(
    new_site: NewSite, sentinel_url: str, redis_url: str
) -> None:
    database = redis_url.rpartition("/")[2]
    site = new_site(f"{sentinel_url}/{database}", master_name=MASTER_NAME, global_keyprefix="shop:")
    site.send(0, 1, 2)
    receiver = site.receiver()
    receiver.receive(3)[0].ack()
    site.raw.zadd(site.index, dict.fromkeys(site.scores(), 1.0))
    told: list[Exception] = []
    Renewal(receiver.kind.books, 3.0, told.append).round()
    assert not told and min(site.scores().values()) > 1.0
    receiver.die()
    returned = site.put_back(receiver.boot_id)
    assert (returned.count, returned.queues) == (2, {"a": 2})
    site.receiver(owner_is_alive=lambda _: False).channel.qos.restore_visible()
    assert site.everything() == ["m1", "m2"] and site.keys() == {"shop:a"}
