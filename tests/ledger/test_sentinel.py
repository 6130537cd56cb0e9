"""The ledger behind Sentinels: it follows the master."""

from __future__ import annotations

import socket

import kombu
import pytest

from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.writer import Writer, command
from celery_poison.testing import wait_until
from tests.harness.servers import SentinelSet

#: For its word on whether there is a Redis to start.
pytestmark = pytest.mark.usefixtures("redis_server")


def test_answered_and_unanswered_writes_reach_the_new_master_after_a_failover() -> None:
    with SentinelSet() as redises:
        client = open_redis(redises.url(2), redises.transport_options)
        writer = Writer(client)
        client.set("before", "1")
        assert writer.send(command(b"RPUSH", b"words", b"before"))
        with redises.replica.client(2) as replica:
            wait_until(lambda: replica.get("before") and replica.llen("words"), what="the replica has both")
        redises.fail_over()
        wait_until(
            lambda: writer.send(command(b"RPUSH", b"words", b"after")), what="the writer finds the master"
        )
        assert client.get("before") == b"1"
        client.set("after", "1")
        with redises.client(2) as master:
            wait_until(lambda: master.lrange("words", 0, -1) == ["before", "after"], what="both words")
            assert master.get("after") == "1"


def test_a_sentinel_that_does_not_answer_is_asked_once_and_passed_over() -> None:
    with SentinelSet() as redises, socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"sentinel://127.0.0.1:{deaf.getsockname()[1]}/0;{redises.url()}"
        assert open_redis(url, redises.transport_options).ping()
        deaf.setblocking(False)
        deaf.accept()
        with pytest.raises(BlockingIOError):
            deaf.accept()  # each further attempt would have cost as long again


def test_the_database_of_a_sentinel_url_is_the_one_that_kombu_uses() -> None:
    url, options = "sentinel://a:1/4;sentinel://b:2/5", {"master_name": "m"}
    ours = open_redis(url, options).connection_pool.connection_kwargs["db"]
    with kombu.Connection(url, transport_options=options) as broker:
        assert ours == int(broker.virtual_host) == 4
