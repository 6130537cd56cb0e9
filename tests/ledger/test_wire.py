"""Unanswered writes: they survive their sender, its forks, and a Redis that goes away."""

from __future__ import annotations

import os
import signal

import redis

from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.wire import Wire, command
from celery_poison.testing import RedisServer, wait_until


def _push(word: str) -> bytes:
    return command(b"RPUSH", b"words", word.encode())


def _words(url: str) -> list[bytes]:
    found: list[bytes] = redis.Redis.from_url(url).lrange("words", 0, -1)  # type: ignore[assignment]
    return found


def _arrived(url: str, count: int) -> None:
    wait_until(lambda: len(_words(url)) == count, timeout=10, what=lambda: f"{count} words: {_words(url)}")


def test_WAS_9_a_write_survives_the_death_of_its_sender(redis_url: str) -> None:
    for number in range(20):
        pid = os.fork()
        if pid == 0:
            Wire(open_redis(redis_url)).send(_push(str(number)))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
    _arrived(redis_url, 20)


def test_WAS_9_a_child_forked_right_after_its_parent_connected_writes_at_once(redis_url: str) -> None:
    wire = Wire(open_redis(redis_url))
    assert wire.send(_push("parent"))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if wire.send(_push("child")) else 1)
    assert os.waitpid(pid, 0)[1] == 0, "the child was told to wait for its parent's pause"
    assert wire.send(_push("parent again"))
    _arrived(redis_url, 3)


def test_a_connection_that_the_server_closed_is_noticed_before_the_next_write(redis_url: str) -> None:
    wire = Wire(open_redis(redis_url))
    assert wire.send(_push("one"))
    _arrived(redis_url, 1)
    admin = redis.Redis.from_url(redis_url)
    mine = {client["id"] for client in admin.client_list() if client["cmd"] in ("rpush", "client|reply")}
    for number in mine:
        admin.client_kill_filter(_id=number)
    assert wire.send(_push("two"))
    _arrived(redis_url, 2)


def test_a_ledger_that_is_away_costs_one_attempt_a_second_and_is_found_again() -> None:
    with RedisServer() as server:
        wire = Wire(open_redis(server.url()))
        assert wire.send(_push("one"))
        server.stop()
        assert [wire.send(_push("lost")) for _ in range(5)] == [False] * 5
        assert wire.failures == 5
        server.start()
        wait_until(lambda: wire.send(_push("again")), timeout=10, what="found again")
