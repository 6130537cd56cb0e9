"""Unanswered writes: they survive their sender, its forks, and a Redis that goes away."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import redis

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.answers import parse
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.writer import Writer, command
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
            Writer(open_redis(redis_url)).send(_push(str(number)))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
    _arrived(redis_url, 20)


def test_WAS_9_a_child_forked_right_after_its_parent_connected_writes_at_once(redis_url: str) -> None:
    writer = Writer(open_redis(redis_url))
    assert writer.send(_push("parent"))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if writer.send(_push("child")) else 1)
    assert os.waitpid(pid, 0)[1] == 0, "the child was told to wait for its parent's pause"
    assert writer.send(_push("parent again"))
    _arrived(redis_url, 3)


def test_a_connection_that_the_server_closed_is_noticed_before_the_next_write(redis_url: str) -> None:
    writer = Writer(open_redis(redis_url))
    assert writer.send(_push("one"))
    _arrived(redis_url, 1)
    admin = redis.Redis.from_url(redis_url)
    mine = {client["id"] for client in admin.client_list() if client["cmd"] in ("rpush", "client|reply")}
    for number in mine:
        admin.client_kill_filter(_id=number)
    assert writer.send(_push("two"))
    _arrived(redis_url, 2)


def test_a_ledger_that_is_away_costs_one_attempt_a_second_and_is_found_again() -> None:
    with RedisServer() as server:
        writer = Writer(open_redis(server.url()))
        assert writer.send(_push("one"))
        server.stop()
        assert [writer.send(_push("lost")) for _ in range(5)] == [False] * 5
        assert writer.failures == 5
        server.start()
        wait_until(lambda: writer.send(_push("again")), timeout=10, what="found again")


# --- starts that are asked about (poison_durability="sync") ------------------------------------------


def test_EMS_10_answers_are_told_in_order_and_of_arrays_the_first_element(redis_url: str) -> None:
    writer = Writer(open_redis(redis_url))
    writer.send(_push("unanswered"))
    array = command(b"EVAL", b"return {7, 8}", b"0")
    assert writer.ask(_push("asked") + array, 2, timeout=5) == [b":2", b":7"]
    writer.send(_push("unanswered again"))
    assert writer.ask(_push("asked again"), 1, timeout=5) == [b":4"]
    assert _words(redis_url) == [b"unanswered", b"asked", b"unanswered again", b"asked again"]


def test_EMS_10_a_refused_write_is_an_error_and_the_next_one_is_not(redis_url: str) -> None:
    writer = Writer(open_redis(redis_url))
    with pytest.raises(LedgerUnavailable, match="WRONGTYPE"):
        writer.ask(_push("one") + command(b"HSET", b"words", b"a", b"b"), 2, timeout=5)
    assert writer.ask(_push("two"), 1, timeout=5) == [b":2"]


def test_EMS_10_answers_that_come_too_late_are_not_taken_for_those_of_the_next_question() -> None:
    with RedisServer() as server:
        writer = Writer(open_redis(server.url()))
        writer.ask(_push("one"), 1, timeout=5)
        server.pause()
        with pytest.raises(LedgerUnavailable, match="no answer in time"):
            writer.ask(_push("two"), 1, timeout=0.1)
        assert writer.send(_push("three")), "nobody else is held up"
        server.resume()
        assert writer.ask(_push("four"), 1, timeout=5) == [b":4"]
        assert writer.connects == 1, "the same connection: the order of notes is kept"
        assert _words(server.url()) == [b"one", b"two", b"three", b"four"]


def test_EMS_2_an_answer_that_nobody_reads_is_not_taken_for_a_broken_connection() -> None:
    with RedisServer() as server:
        writer = Writer(open_redis(server.url()), "channel")
        writer.ask(_push("one"), 1, timeout=5)
        server.pause()
        with pytest.raises(LedgerUnavailable):
            writer.ask(_push("two"), 1, timeout=0.1)
        server.resume()
        _arrived(server.url(), 2)
        assert writer.wait(0.2), "it still stands"
        server.kill()
        assert not writer.wait(20), "it is noticed all the same"


def test_EMS_10_a_write_passes_while_somebody_waits_for_an_answer(redis_url: str) -> None:
    writer = Writer(open_redis(redis_url))
    blocked = command(b"BLPOP", b"nothing", b"30")
    asking = threading.Thread(target=lambda: writer.ask(blocked, 1, timeout=30))
    asking.start()
    admin = redis.Redis.from_url(redis_url)
    wait_until(lambda: admin.info("clients")["blocked_clients"] > 0, timeout=10, what="somebody waits")
    assert writer.send(_push("meanwhile"))
    admin.rpush("nothing", "enough")
    asking.join(timeout=10)
    _arrived(redis_url, 1)


def test_EMS_10_a_server_that_died_while_it_was_asked_is_found_again() -> None:
    with RedisServer() as server:
        writer = Writer(open_redis(server.url()))
        writer.ask(_push("one"), 1, timeout=5)
        server.pause()
        with pytest.raises(LedgerUnavailable):
            writer.ask(_push("lost"), 1, timeout=0.1)
        server.kill()
        server.start()
        assert writer.send(_push("two")), "an unread answer does not hide that the connection is gone"
        assert writer.ask(_push("three"), 1, timeout=5) == [b":2"]
        assert writer.connects == 2


@pytest.mark.parametrize(
    ("text", "count", "found"),
    [
        (b"", 1, None),
        (b"+OK\r\n:1", 2, None),
        (b"+OK\r\n:1\r\n", 2, [b"+OK", b":1"]),
        (b"*2\r\n:1\r\n", 1, None),
        (b"*2\r\n:1\r\n:0\r\n", 1, [b":1"]),
        (b"-ERR no\r\n*2\r\n:1\r\n:0\r\n:5\r\n", 3, [b"-ERR no", b":1", b":5"]),
    ],
)
def test_EMS_10_answers_are_taken_apart_when_they_are_complete(
    text: bytes, count: int, found: list[bytes] | None
) -> None:
    assert parse(text, count) == found


def test_EMS_8_a_new_connection_begins_with_what_redis_may_have_forgotten(redis_url: str) -> None:
    told = iter(["first", "second"])
    writer = Writer(open_redis(redis_url), on_connect=lambda: _push(f"{next(told)} reminder"))
    assert writer.send(_push("one"))
    _arrived(redis_url, 2)
    admin = redis.Redis.from_url(redis_url)
    for row in admin.client_list():
        if row["cmd"] in ("rpush", "client|reply"):
            admin.client_kill_filter(_id=row["id"])
    assert writer.send(_push("two"))
    _arrived(redis_url, 4)
    assert _words(redis_url) == [b"first reminder", b"one", b"second reminder", b"two"]
