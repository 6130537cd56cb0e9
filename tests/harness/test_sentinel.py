"""The private Sentinels: they fail over when asked, and leave everything in its place."""

from __future__ import annotations

import pytest
import redis

from celery_poison.testing import wait_until
from tests.harness.servers import SentinelSet

#: For its word on whether there is a Redis to start.
pytestmark = pytest.mark.usefixtures("redis_server")


def _master(redises: SentinelSet) -> redis.Redis:
    """Whom a client that trusts the Sentinels finds."""
    hosts = [("127.0.0.1", redises.sentinel.port)]
    found: redis.Redis = redis.Sentinel(hosts).master_for(redises.transport_options["master_name"])
    return found


def test_the_replica_of_a_killed_master_becomes_the_master_with_its_data() -> None:
    with SentinelSet() as redises:
        old, new = redises.master, redises.replica
        _master(redises).set("word", "kept")
        with new.client() as client:
            wait_until(lambda: client.get("word") == "kept", what="the replica has it")
        redises.fail_over()
        assert (redises.master, redises.replica) == (new, old)
        assert _master(redises).get("word") == b"kept"
        assert old.pid is None


@pytest.mark.matrix
def test_a_master_that_lives_is_replaced_and_becomes_the_replica() -> None:
    with SentinelSet() as redises:
        old = redises.master
        redises.fail_over(kill=False)
        assert redises.replica is old and redises.master is not old
        redises.client().set("word", "new")
        redises.wait_whole()
        with old.client() as client:
            wait_until(lambda: client.get("word") == "new", what="the old master follows")


def test_the_url_names_the_sentinel_and_the_database() -> None:
    redises = SentinelSet()
    assert redises.url(4) == f"sentinel://127.0.0.1:{redises.sentinel.port}/4"
