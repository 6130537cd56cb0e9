"""What this Redis user may do: every command that the plugin needs, on keys that are removed again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from celery_poison.cli.checks.finding import Finding
from celery_poison.ledger.keys import Keys

Command = tuple[Any, ...]

#: Seconds after which a left-over probe vanishes by itself, should this process die.
LIFETIME = 60


def rights(client: redis.Redis, keys: Keys) -> Iterator[Finding]:
    """Try every command once; afterwards nothing is left."""
    base = f"{keys.prefix}doctor:{secrets.token_hex(8)}"
    probes = [f"{base}:{kind}" for kind in ("string", "hash", "zset", "stream")]
    refused: dict[str, redis.RedisError] = {}
    try:
        for command in _commands(*probes):
            refusal = _tried(client, command)
            if refusal is not None:
                refused.setdefault(str(command[0]), refusal)
        for name, ask in (("MULTI EXEC", _ask_transaction), ("CLIENT REPLY", _ask_reply)):
            try:
                ask(client)
            except redis.exceptions.ResponseError as error:
                refused[name] = error
    finally:
        _tried(client, ("DEL", *probes))
    yield _permissions([name for name, error in refused.items() if _forbidden(error)])
    yield _writable([error for error in refused.values() if not _forbidden(error)])
    yield _presence(client, keys)


def _commands(string: str, hash: str, zset: str, stream: str) -> list[Command]:
    """Return every command that the ledger, its scripts and its writers use, in an order that works."""
    return [
        ("SET", string, "1", "PX", LIFETIME * 1000),
        ("GET", string),
        ("EXISTS", string),
        ("INCR", string),
        ("PEXPIRE", string, LIFETIME * 1000),
        ("HSET", hash, "a", "1"),
        ("EXPIRE", hash, LIFETIME),
        ("HSETNX", hash, "b", "1"),
        *[
            ("HGET", hash, "a"),
            ("HMGET", hash, "a"),
            ("HGETALL", hash),
            ("HEXISTS", hash, "a"),
            ("HLEN", hash),
        ],
        ("HSCAN", hash, 0),
        ("HINCRBY", hash, "a", 1),
        ("HDEL", hash, "a"),
        ("ZADD", zset, 1, "a"),
        ("EXPIRE", zset, LIFETIME),
        *[("ZSCORE", zset, "a"), ("ZCARD", zset), ("ZRANGE", zset, 0, -1), ("ZREVRANGE", zset, 0, -1)],
        *[("ZREMRANGEBYRANK", zset, 0, -9), ("ZREMRANGEBYSCORE", zset, 5, 9), ("ZREM", zset, "a")],
        ("XADD", stream, "MAXLEN", "~", 1000, "*", "a", "1"),
        ("EXPIRE", stream, LIFETIME),
        *[("XLEN", stream), ("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")],
        ("EVAL", "return redis.call('GET', KEYS[1])", 1, string),
        ("SCRIPT LOAD", "return 1"),
        ("EVALSHA", _SHA_OF_RETURN_1, 0),
        ("TIME",),
        ("DEL", string),
    ]


_SHA_OF_RETURN_1 = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"


def _tried(client: redis.Redis, command: Command) -> redis.RedisError | None:
    try:
        client.execute_command(*command)  # type: ignore[no-untyped-call]
    except redis.exceptions.ResponseError as error:
        return error
    return None


def _ask_transaction(client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=True)
    pipe.time()
    pipe.execute()


def _ask_reply(client: redis.Redis) -> None:
    """Ask for CLIENT REPLY, by which the hot path writes without waiting, on a connection of its own."""
    pool = client.connection_pool
    connection: Any = pool.connection_class(**pool.connection_kwargs)
    try:
        connection.connect()
        connection.send_command("CLIENT", "REPLY", "ON")
        connection.read_response()
    finally:
        connection.disconnect()


def _presence(client: redis.Redis, keys: Keys) -> Finding:
    """Check that a broken connection can tell of a death; all else works without it, only later."""
    missing = _missing_for_presence(client, keys)
    if not missing:
        return Finding("presence", "ok", "a worker's death is noticed by its connections")
    said = f"a worker's death is noticed by its heartbeat only: this user lacks {' '.join(missing)}"
    return Finding("presence", "warn", said, f"ACL SETUSER <user> {' '.join(missing)}")


def _missing_for_presence(client: redis.Redis, keys: Keys) -> list[str]:
    """Subscribe as a worker's processes do, count as a monitor does; return the access rules that lack."""
    channel = keys.channel(f"doctor/{secrets.token_hex(8)}")
    asked: list[tuple[str, Command]] = [
        ("+info", ("INFO", "server")),
        ("+subscribe", ("SUBSCRIBE", channel)),
        ("+pubsub", ("PUBSUB", "NUMSUB", channel)),
    ]
    missing = []
    pool = client.connection_pool
    connection: Any = pool.connection_class(**{**pool.connection_kwargs, "protocol": 3})
    try:
        connection.connect()
        for rule, words in asked:
            connection.send_command(*words)
            try:
                connection.read_response(push_request=True)
            except redis.exceptions.ResponseError as error:
                missing.append(f"&{keys.alive}*" if "channel" in str(error) else rule)
    finally:
        connection.disconnect()
    return missing


def _forbidden(error: redis.RedisError) -> bool:
    return isinstance(error, redis.exceptions.NoPermissionError)


#: How an access rule spells what is not a command of one word.
_RULES = {"SCRIPT LOAD": "+script|load", "CLIENT REPLY": "+client|reply", "MULTI EXEC": "+multi +exec"}


def _permissions(missing: Sequence[str]) -> Finding:
    if not missing:
        return Finding("permissions", "ok", "every command that is needed is allowed")
    rules = " ".join(_RULES.get(name, f"+{name.lower()}") for name in missing)
    cure = f"ACL SETUSER <user> {rules}, for the keys of poison_namespace"
    return Finding("permissions", "FAIL", f"not allowed: {', '.join(missing)}", cure)


def _writable(errors: Sequence[redis.RedisError]) -> Finding:
    if not errors:
        return Finding("writable", "ok", "a key was written and removed")
    match errors[0]:
        case redis.exceptions.OutOfMemoryError():
            return Finding(
                "writable", "FAIL", "Redis is out of memory", "raise maxmemory, or free some of it"
            )
        case redis.exceptions.ReadOnlyError():
            return Finding("writable", "FAIL", "Redis is a read-only replica", "use the primary")
        case error:
            return Finding("writable", "FAIL", f"Redis refuses: {error}", "look into Redis' log")
