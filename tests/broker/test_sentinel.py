"""A broker behind Redis Sentinel: receiving, renewing, sweeping and putting back go to its master."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from celery_poison.broker.held import Renewal
from celery_poison.testing import RedisServer, wait_until
from celery_poison.testing.basics import free_ports
from tests.broker.kit import Site

NewSite = Callable[..., Site]


@pytest.fixture
def sentinel_url(redis_server: RedisServer, tmp_path: Path) -> Iterator[str]:
    """A Sentinel that knows the test run's server as `mymaster`."""
    (port,) = free_ports()
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor mymaster 127.0.0.1 {redis_server.port} 1\n"
    )
    command = [redis_server.binary, str(settings), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    def knows() -> bool:
        assert process.poll() is None, "the Sentinel has left"
        with suppress(redis.ConnectionError), redis.Redis(port=port) as client:
            return bool(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"))
        return False

    try:
        wait_until(knows, what="the Sentinel knows its master")
        yield f"sentinel://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def test_EMS_6_putting_back_and_renewing_work_through_a_sentinel(
    new_site: NewSite, sentinel_url: str, redis_url: str
) -> None:
    database = redis_url.rpartition("/")[2]
    site = new_site(f"{sentinel_url}/{database}", master_name="mymaster", global_keyprefix="shop:")
    site.send(0, 1, 2)
    receiver = site.receiver()
    receiver.receive(3)[0].ack()
    site.raw.zadd(site.index, dict.fromkeys(site.scores(), 1.0))
    told: list[Exception] = []
    Renewal(receiver.kind.holdings, 3.0, told.append).round()
    assert not told and min(site.scores().values()) > 1.0
    receiver.die()
    returned = site.put_back(receiver.boot_id)
    assert (returned.count, returned.queues) == (2, {"a": 2})
    site.receiver(owner_is_alive=lambda _: False).channel.qos.restore_visible()
    assert site.everything() == ["m1", "m2"] and site.keys() == {"shop:a"}
