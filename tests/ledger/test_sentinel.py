"""The ledger behind Sentinels: it follows the master."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
import redis
from redis.sentinel import SentinelManagedSSLConnection

from celery_poison.broker.redis.client import client_of
from celery_poison.broker.transport import guarded_connection
from celery_poison.ledger.connection import ask_once, open_redis
from celery_poison.ledger.in_step import hanging_up
from celery_poison.ledger.writer import Writer, command
from celery_poison.testing import RedisServer, wait_until
from tests.harness.servers import MASTER_NAME, SentinelServer, SentinelSet

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


@pytest.fixture(scope="module")
def behind_sentinel(redis_server: RedisServer) -> Iterator[tuple[str, dict[str, Any]]]:
    with SentinelServer(redis_server) as sentinel:
        wait_until(lambda: sentinel.has_master(redis_server.port), what="the Sentinel knows its master")
        yield (
            f"sentinel://127.0.0.1:{sentinel.port}/9999",
            {"master_name": MASTER_NAME, "socket_timeout": 0.3},
        )


def test_NEW_30_an_answer_that_comes_too_late_is_not_taken_for_that_to_the_next_question(
    behind_sentinel: tuple[str, dict[str, Any]], redis_server: RedisServer
) -> None:
    url, options = behind_sentinel
    ledger = open_redis(url, options)
    ledger.connection_pool.connection_kwargs["socket_timeout"] = 0.3
    guarded = guarded_connection(lambda: "boot")(url, transport_options=options)
    plain = kombu.Connection(url, transport_options=options)
    with guarded, plain, redis_server.client(9999) as admin:
        channel = guarded.default_channel
        clients = {
            "ledger": ledger,
            "worker's channel": redis.Redis(connection_pool=channel.pool),
            "worker's event loop": redis.Redis(connection_pool=channel.async_pool),
            "book": channel.book._client,
            "publisher": client_of(plain.default_channel),
        }
        for name, client in clients.items():
            ask_once(client)  # else redis-py hangs up for a time-out, though not for a soft time limit
            client.ping()
            admin.client_pause(700)
            with pytest.raises(redis.TimeoutError):
                client.echo("late")
            admin.client_unpause()
            assert [client.echo("one"), client.echo("two")] == [b"one", b"two"], name


def test_NEW_30_that_goes_for_TLS_too() -> None:
    (kind,) = {hanging_up(SentinelManagedSSLConnection), hanging_up(hanging_up(SentinelManagedSSLConnection))}
    url = "sentinel://a:1/0?ssl_cert_reqs=none"
    pool = open_redis(url, {"master_name": "m"}).connection_pool
    assert pool.connection_class is kind and issubclass(kind, SentinelManagedSSLConnection)
