"""How a start survives Redis: by means chosen from what the server tells, or refused with the cure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_poison.errors import LedgerUnavailable
from celery_poison.ledger.connection import open_redis
from celery_poison.ledger.durability import (
    ALWAYS,
    EVERYSEC,
    REPLICA,
    WAITAOF,
    Means,
    NoPromise,
    WaitingWriter,
    choose,
    find_means,
)
from celery_poison.ledger.writer import command
from celery_poison.testing import RedisServer, wait_until

OLD: dict[str, Any] = {"redis_version": "7.0.15", "role": "master", "aof_enabled": 1, "connected_slaves": 0}
NEW = OLD | {"redis_version": "8.0.2"}
VALKEY = OLD | {"redis_version": "7.2.4", "valkey_version": "9.1.2"}
ONE_REPLICA = {"connected_slaves": 1, "slave0": {"state": "online"}}
NO_AOF = {"aof_enabled": 0}


def syncing(how: str, on_rewrite: str = "no") -> dict[str, str]:
    return {"appendfsync": how, "no-appendfsync-on-rewrite": on_rewrite}


@pytest.mark.parametrize(
    ("info", "config", "means"),
    [
        (OLD, syncing("always"), ALWAYS),
        (VALKEY, syncing("always"), ALWAYS),
        (NEW, syncing("always"), WAITAOF),
        (NEW, syncing("always", on_rewrite="yes"), WAITAOF),
        (NEW, syncing("everysec"), EVERYSEC),
        (NEW | {"redis_version": "10.0.0"}, syncing("everysec"), EVERYSEC),
        (OLD | ONE_REPLICA, syncing("always"), ALWAYS),
        (OLD | ONE_REPLICA, syncing("everysec"), REPLICA),
        (OLD | ONE_REPLICA, syncing("always", on_rewrite="yes"), REPLICA),
        (VALKEY | ONE_REPLICA, syncing("everysec"), REPLICA),
        (OLD | ONE_REPLICA | NO_AOF, syncing("always"), REPLICA),
        (OLD | ONE_REPLICA, None, REPLICA),
    ],
)
def test_EMS_10_the_means_follow_from_what_the_server_tells(
    info: dict[str, Any], config: dict[str, str] | None, means: Means
) -> None:
    assert choose(info, config, sentinel=False) == means


def test_EMS_10_where_a_replica_takes_over_the_start_must_be_on_a_replica() -> None:
    assert choose(NEW | ONE_REPLICA, syncing("always"), sentinel=True) == REPLICA
    assert choose(NEW, syncing("always"), sentinel=True) == WAITAOF


@pytest.mark.parametrize(
    ("info", "config", "found", "cure"),
    [
        (OLD | NO_AOF, syncing("always"), "Redis 7.0.15; appendonly no", "set appendonly yes"),
        (OLD, syncing("everysec"), "appendfsync everysec", "appendfsync always"),
        (OLD, syncing("always", on_rewrite="yes"), "no-appendfsync-on-rewrite yes", "on-rewrite no"),
        (NEW, syncing("no"), "appendfsync no", "or everysec"),
        (OLD | {"redis_version": "7.4.2"}, syncing("everysec"), "Redis 7.4.2", "appendfsync always"),
        (VALKEY, syncing("everysec"), "Valkey 9.1.2", "appendfsync always"),
        (NEW, None, "CONFIG GET is not allowed", "+config|get"),
        (NEW | {"role": "slave"}, syncing("always"), "itself a replica", "use the primary"),
        (
            OLD | {"connected_slaves": 1, "slave0": {"state": "wait_bgsave"}},
            syncing("no"),
            "no connected replica",
            "connect a replica",
        ),
    ],
)
def test_EMS_10_what_cannot_be_promised_is_refused_with_what_was_found_and_the_cure(
    info: dict[str, Any], config: dict[str, str] | None, found: str, cure: str
) -> None:
    with pytest.raises(NoPromise, match="poison_durability='sync'") as refused:
        choose(info, config, sentinel=False)
    assert found in refused.value.found
    assert cure in refused.value.cure


# --- real servers ------------------------------------------------------------------------------------


@pytest.fixture
def always() -> Iterator[RedisServer]:
    with RedisServer(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


def _as_user(server: RedisServer, *rules: str) -> redis.Redis:
    server.client().acl_setuser("shop", enabled=True, nopass=True, keys=["*"], commands=rules)
    return open_redis(server.url().replace("redis://", "redis://shop:x@"))


def test_EMS_10_a_server_that_syncs_always_is_found(always: RedisServer) -> None:
    means = find_means(open_redis(always.url()))
    assert means in (ALWAYS, WAITAOF)


def test_EMS_10_a_user_who_may_not_ask_is_told_the_right_that_is_missing(always: RedisServer) -> None:
    with pytest.raises(NoPromise, match=r"\+config\|get"):
        find_means(_as_user(always, "+@all", "-config"))
    with pytest.raises(NoPromise, match=r"\+info"):
        find_means(_as_user(always, "+@all", "-info"))


def test_EMS_10_a_replica_is_found_when_it_is_in_step_and_only_if_it_may_be_waited_for() -> None:
    with RedisServer() as primary, RedisServer(options={"replicaof": f"127.0.0.1 {primary.port}"}):
        client = open_redis(primary.url())
        wait_until(lambda: _means(client) == REPLICA, what="a replica in step")
        with pytest.raises(NoPromise, match=r"\+wait"):
            find_means(_as_user(primary, "+@all", "-wait"))


def _means(client: redis.Redis) -> Means | None:
    try:
        return find_means(client)
    except NoPromise:
        return None


# --- writes that are waited for ------------------------------------------------------------------------


def _push(word: str) -> bytes:
    return command(b"RPUSH", b"words", word.encode())


def _words(url: str) -> list[bytes]:
    found: list[bytes] = redis.Redis.from_url(url).lrange("words", 0, -1)  # type: ignore[assignment]
    return found


def test_EMS_10_a_write_that_is_waited_for_returns_its_answers_in_order(redis_url: str) -> None:
    waiting = WaitingWriter(open_redis(redis_url))
    array = command(b"EVAL", b"return {7, 8}", b"0")
    assert waiting.write(_push("one") + array, 2) == [1, [7, 8]]
    assert waiting.write(_push("two"), 1) == [2]


def test_EMS_10_a_refused_write_is_an_error_and_the_next_one_is_not(redis_url: str) -> None:
    waiting = WaitingWriter(open_redis(redis_url))
    with pytest.raises(LedgerUnavailable, match="WRONGTYPE"):
        waiting.write(command(b"SET", b"text", b"x") + command(b"HSET", b"text", b"a", b"b"), 2)
    assert waiting.write(_push("one"), 1) == [1]


def test_EMS_10_an_answer_that_comes_too_late_is_not_taken_for_that_of_the_next_write() -> None:
    with RedisServer() as server:
        waiting = WaitingWriter(open_redis(server.url()), patience=0.2)
        waiting.write(_push("one"), 1)
        server.pause()
        with pytest.raises(LedgerUnavailable):
            waiting.write(_push("two"), 1)
        server.resume()
        wait_until(lambda: server.client().ping(), what="it answers again")
        assert waiting.write(command(b"ECHO", b"three"), 1) == [b"three"]


def test_EMS_10_a_server_that_was_restarted_between_two_writes_costs_nothing() -> None:
    with RedisServer() as server:
        waiting = WaitingWriter(open_redis(server.url()))
        waiting.write(_push("one"), 1)
        server.kill()
        with pytest.raises(LedgerUnavailable):
            waiting.write(_push("lost"), 1)
        server.start()
        assert waiting.write(_push("two"), 1)
        server.kill()
        server.start()
        assert waiting.write(_push("three"), 1), "the closed connection is noticed before the write"


def test_EMS_10_a_forked_process_waits_on_a_connection_of_its_own(redis_url: str) -> None:
    waiting = WaitingWriter(open_redis(redis_url))
    waiting.write(_push("parent"), 1)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if waiting.write(_push("child"), 1) == [2] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert waiting.write(_push("parent again"), 1) == [3]
    assert _words(redis_url) == [b"parent", b"child", b"parent again"]
