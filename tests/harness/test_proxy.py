"""The partition in a box: what a client sees of a network that is cut, frozen and mended."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import redis

from celery_poison.testing import RedisServer, wait_until
from celery_poison.testing.servers import free_ports
from tests.harness.proxy import TcpProxy


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", redis_server.port) as proxy:
        yield proxy
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("tcp-proxy")],
        what="its threads end",
    )


@pytest.fixture
def client(proxy: TcpProxy, redis_url: str) -> Iterator[redis.Redis]:
    """A client behind the proxy that makes one attempt and tells what came of it."""
    with redis.Redis.from_url(proxy.url(redis_url), retry=None, socket_timeout=0.2) as client:
        yield client


def _in_database_of(url: str, commands: bytes) -> bytes:
    """As one types them to Redis: nothing waits for an answer to a greeting."""
    return b"SELECT %s\r\n" % url.rpartition("/")[2].encode() + commands


def test_everything_goes_through_both_ways(client: redis.Redis, redis_url: str) -> None:
    large = b"x" * 3_000_000
    client.set("large", large)
    assert redis.Redis.from_url(redis_url).get("large") == large
    assert client.get("large") == large


@pytest.mark.parametrize(
    ("direct", "through"),
    [
        ("redis://127.0.0.1:6379/3?ssl=no", "redis://127.0.0.1:{}/3?ssl=no"),
        ("amqp://me:a%40b@rabbit:5672/%2F", "amqp://me:a%40b@127.0.0.1:{}/%2F"),
        ("redis://rabbit", "redis://127.0.0.1:{}"),
    ],
)
def test_only_host_and_port_of_a_url_change(direct: str, through: str) -> None:
    proxy = TcpProxy("127.0.0.1", 6379)
    assert proxy.url(direct) == through.format(proxy.port)


def test_a_cut_closes_what_is_open_and_refuses_what_is_new_until_it_heals(
    proxy: TcpProxy, client: redis.Redis
) -> None:
    client.ping()
    for _ in range(2):
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
        proxy.heal()
        assert client.ping()


def test_frozen_bytes_arrive_when_it_heals_and_not_before(
    proxy: TcpProxy, client: redis.Redis, redis_url: str
) -> None:
    direct = redis.Redis.from_url(redis_url)
    client.ping()
    proxy.freeze()
    with pytest.raises(redis.TimeoutError):
        client.rpush("words", "on a connection that was open")
    with socket.create_connection(("127.0.0.1", proxy.port)) as new:
        new.sendall(_in_database_of(redis_url, b"RPUSH words new\r\n"))
        new.settimeout(0.2)
        with pytest.raises(TimeoutError):
            new.recv(1)
        assert direct.llen("words") == 0
        proxy.heal()
        wait_until(lambda: direct.llen("words") == 2, what="both words arrive")


def test_a_client_that_dies_behind_a_frozen_proxy_is_not_missed_before_it_heals(
    proxy: TcpProxy, redis_url: str
) -> None:
    direct = redis.Redis.from_url(redis_url)
    subscriber = redis.Redis.from_url(proxy.url(redis_url)).pubsub()
    subscriber.subscribe(redis_url)
    wait_until(lambda: direct.pubsub_numsub(redis_url) == [(redis_url.encode(), 1)])
    proxy.freeze()
    subscriber.close()
    assert direct.pubsub_numsub(redis_url) == [(redis_url.encode(), 1)]
    proxy.heal()
    wait_until(lambda: direct.pubsub_numsub(redis_url) == [(redis_url.encode(), 0)])


def test_dropped_connections_are_made_anew_at_once(proxy: TcpProxy, client: redis.Redis) -> None:
    first = client.client_id()
    proxy.drop_connections()
    assert client.client_id() != first


def test_all_arrives_that_a_client_sent_before_it_closed(proxy: TcpProxy, redis_url: str) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as sock:
        # Unread answers would make of its closing a reset, behind which nothing is delivered.
        sock.sendall(b"CLIENT REPLY OFF\r\n" + _in_database_of(redis_url, b"RPUSH words a\r\n" * 50_000))
    direct = redis.Redis.from_url(redis_url)
    wait_until(lambda: direct.llen("words") == 50_000, what="all of them")


def test_a_server_that_is_not_there_looks_like_a_closed_connection() -> None:
    with (
        TcpProxy("127.0.0.1", free_ports()[0]) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as sock,
    ):
        sock.settimeout(5)
        assert sock.recv(1) == b""
