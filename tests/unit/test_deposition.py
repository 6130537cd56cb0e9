"""What a worker leaves with the watcher of a cell."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.wire import command
from celery_poison.testing.ports import free_ports
from celery_poison.worker.trial.deposition import Depositions
from celery_poison.worker.trial.watcher import Orders


@pytest.fixture
def orders() -> Iterator[tuple[socket.socket, Orders]]:
    """The worker's end, and the watcher's orders."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Orders(theirs)


def deposit(control: socket.socket, url: str, *words: bytes) -> None:
    with Depositions(open_redis(url)).written(command(*words)) as fds:
        socket.send_fds(control, [b"d"], fds)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_while_the_ledger_is_away_there_is_no_testimony_and_no_error(scheme: str) -> None:
    depositions = Depositions(open_redis(f"{scheme}://127.0.0.1:{free_ports()[0]}"))
    with depositions.written(b"PING\r\n") as fds:
        assert fds == ()


@pytest.mark.parametrize("url", ["redis_url", "tls_url", "unix_url"])
def test_NEW_1_what_was_deposited_last_is_said_by_whoever_knows_nothing_of_redis(
    url: str, orders: tuple[socket.socket, Orders], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(url)
    control, watcher = orders
    large = os.urandom(3_000_000)
    deposit(control, url, b"SET", b"first", b"1")
    deposit(control, url, b"SET", b"second", large)
    assert (watcher.next(), watcher.next()) == (b"d", b"d")
    watcher.testify()
    with open_redis(url) as client:
        assert (client.get("first"), client.get("second")) == (None, large)


def test_what_was_forgotten_is_not_said(redis_url: str, orders: tuple[socket.socket, Orders]) -> None:
    control, watcher = orders
    deposit(control, redis_url, b"SET", b"key", b"1")
    control.sendall(b"f")
    control.sendall(b"s")
    heard = watcher.next() + watcher.next()
    assert heard == b"ds"
    watcher.testify()
    with open_redis(redis_url) as client:
        assert client.get("key") is None


def test_orders_that_arrive_together_do_not_hide_the_one_to_kill(
    redis_url: str, orders: tuple[socket.socket, Orders]
) -> None:
    control, watcher = orders
    control.sendall(b"f")
    control.sendall(b"s")
    control.sendall(b"k")
    deposit(control, redis_url, b"PING")
    assert watcher.next() == b"k"
    control.close()
    assert watcher.next() in (b"", b"d")
    assert watcher.next() == b""


def test_nothing_is_deposited_with_a_server_that_cannot_be_verified(tls_url: str) -> None:
    unverified = tls_url.partition("?")[0]
    with Depositions(open_redis(unverified)).written(b"PING\r\n") as fds:
        assert fds == ()
