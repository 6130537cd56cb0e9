"""Unanswered writes: they survive their sender, its forks, and a Redis that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import redis

from celery_poison.ledger import writer as writer_module
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.writer import Writer, command
from celery_poison.testing import RedisServer, wait_until


def _push(word: str) -> bytes:
    return command(b"RPUSH", b"words", word.encode())


def _words(url: str) -> list[bytes]:
    found: list[bytes] = redis.Redis.from_url(url).lrange("words", 0, -1)  # type: ignore[assignment]
    return found


def _arrived(url: str, count: int) -> None:
    wait_until(lambda: len(_words(url)) == count, what=lambda: f"{count} words: {_words(url)}")


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


@pytest.mark.parametrize(
    "replace",
    ["import gevent.monkey as g; g.patch_all()", "import eventlet as e; e.monkey_patch()"],
    ids=["gevent", "eventlet"],
)
def test_WAS_9_a_write_gives_no_greenlet_a_turn_between_two_writes(redis_url: str, replace: str) -> None:
    script = f"""if True:
        {replace}
        import greenlet, sys
        from celery_poison.ledger.connection import open_redis
        from celery_poison.ledger.writer import Writer, command
        writer, turns = Writer(open_redis(sys.argv[1])), []
        assert writer.send(command(b"RPUSH", b"words", b"first"))
        greenlet.settrace(lambda event, who: turns.append(event))
        assert all(writer.send(command(b"RPUSH", b"words", b"more")) for _ in range(20))
        greenlet.settrace(None)
        assert not turns, turns
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, redis_url], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    _arrived(redis_url, 21)


def test_a_ledger_that_is_away_costs_one_attempt_a_second_and_is_found_again() -> None:
    with RedisServer() as server:
        writer = Writer(open_redis(server.url()))
        assert writer.send(_push("one"))
        server.stop()
        assert [writer.send(_push("lost")) for _ in range(5)] == [False] * 5
        assert writer.failures == 5
        server.start()
        wait_until(lambda: writer.send(_push("again")), what="found again")


def test_WAS_9_a_process_that_was_frozen_while_it_connected_is_back_after_a_short_pause(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(writer_module.time, "monotonic", lambda: now[0])
    writer = Writer(open_redis(redis_url))

    def connect() -> None:
        now[0] += 15.0
        raise redis.TimeoutError("the answer had come, and was not read in time")

    with monkeypatch.context() as frozen:
        frozen.setattr(writer, "_connected", connect)
        assert not writer.send(_push("not on record"))
    now[0] += writer_module.LONGEST_PAUSE
    assert writer.send(_push("on record"))
    _arrived(redis_url, 1)


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


def test_EMS_2_news_ends_a_wait_and_leaves_the_connection_as_it_is(redis_url: str) -> None:
    heard: list[str] = []
    writer = Writer(open_redis(redis_url), "mine", news="news", on_news=lambda: heard.append("news"))
    assert writer.open()
    assert writer.wait(0.0)
    redis.Redis.from_url(redis_url).publish("news", "a worker has ended")
    assert not writer.wait(60.0)
    assert writer.send(_push("one"))
    _arrived(redis_url, 1)
    assert heard == ["news"]
    assert writer.connects == 1
    assert writer.wait(0.0)


def test_EMS_2_who_may_not_hear_the_news_is_subscribed_as_ever(redis_server: RedisServer) -> None:
    admin = redis_server.client()
    user = {"enabled": True, "nopass": True, "keys": ["*"], "channels": ["mine"], "commands": ["+@all"]}
    # Which channels a new user may hear depends on the server.
    admin.acl_setuser("shop", reset=True, reset_channels=True, **user)
    client = open_redis(redis_server.url().replace("redis://", "redis://shop:x@"))
    writer = Writer(client, "mine", news="news")
    assert writer.open()
    assert writer.run_id
    assert admin.pubsub_numsub("mine", "news") == [("mine", 1), ("news", 0)]
    assert writer.wait(0.0), "the refusal was read"
    writer.close()
    admin.acl_deluser("shop")
