"""Clients of the ledger: what they never do by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from celery_poison.ledger.connection import ANSWER_TIMEOUT, open_redis


@pytest.mark.parametrize(
    "url", ["redis://h/0", "rediss://h/0?ssl_cert_reqs=none", "unix:///no/such.sock", "sentinel://h:1/0"]
)
def test_NEW_30_no_client_of_the_ledger_repeats_what_had_no_answer_whatever_its_redis_py_would(
    url: str,
) -> None:
    """A repeated transition would meet its own traces; `redis.Redis()` of redis-py 8 repeats ten times."""
    pool: Any = open_redis(url, {"master_name": "m"}).connection_pool
    # Not by the pool, which for a Sentinel would first ask for its master.
    options = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    extra = {"connection_pool": pool} if url.startswith("sentinel") else {}
    connection = pool.connection_class(**options, **extra)
    assert (connection.retry._retries, connection.socket_timeout) == (0, ANSWER_TIMEOUT)
