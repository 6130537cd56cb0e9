"""What ``celery poison doctor`` asks Redis: version, persistence, memory, clock, and what this user may do.

Nothing that stays is changed.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import redis

from celery_poison.ledger.connection import MINIMUM_VERSION, clear_errors
from celery_poison.ledger.durability import NoPromise, find_means
from celery_poison.ledger.keys import Keys

Level = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        level: ok; warn: works, with a weakness; FAIL: promises are broken.
        cure: what to do about it.
    """

    check: str
    level: Level
    said: str
    cure: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


#: Milliseconds of one round trip above which a look-up becomes felt.
SLOW = 50.0
#: Seconds by which clocks may differ unnoticed.
SKEW = 1.0
#: Share of maxmemory above which the next backlog may fill it.
NEARLY_FULL = 0.9

Info = Mapping[str, Any]


def reachability(client: redis.Redis, url: str) -> Finding:
    """Measure some round trips.

    Raises:
        LedgerUnavailable: there is no answer.
    """
    with clear_errors("connecting to the ledger"):
        client.ping()
        latency = statistics.median(_round_trip(client) for _ in range(5))
    said = f"{url} answers within {latency:.1f} ms"
    cure = "put the ledger's Redis nearer to the workers" if latency > SLOW else ""
    return Finding("reachable", "warn" if cure else "ok", said, cure)


def _round_trip(client: redis.Redis) -> float:
    begun = time.perf_counter()
    client.ping()
    return (time.perf_counter() - begun) * 1000


def server(client: redis.Redis) -> Iterator[Finding]:
    """Check what INFO tells."""
    try:
        info: Any = client.info()
    except redis.exceptions.NoPermissionError:
        cure = "allow INFO to this user (ACL SETUSER ... +info), or check these yourself"
        yield Finding("redis", "warn", "version, persistence and eviction cannot be checked", cure)
        return
    yield _version(info)
    yield _persistence(client, info)
    yield _eviction(info)
    yield _memory(info)
    yield _role(info)


def _version(info: Info) -> Finding:
    version = str(info["redis_version"])
    if "dragonfly_version" in info:
        said = (
            f"Dragonfly {info['dragonfly_version']}: it tells no run_id, by which workers notice that their"
            " ledger came back empty, has no append-only file, and was never tried"
        )
        return Finding("version", "FAIL", said, _REDIS_OR_VALKEY)
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        return Finding("version", "FAIL", f"Redis {version} is too old", "use Redis 6.2 or newer")
    if "mvcc_depth" in info:
        return Finding("version", "warn", f"KeyDB {version}: never tried", _REDIS_OR_VALKEY)
    if info.get("cluster_enabled"):
        said = f"Redis Cluster, {version}: a command whose key lies on another node is refused"
        return Finding("version", "warn", said, f"{_REDIS_OR_VALKEY} without cluster-enabled")
    if "valkey_version" in info:
        return Finding("version", "ok", f"Valkey {info['valkey_version']}")
    return Finding("version", "ok", f"Redis {version}")


_REDIS_OR_VALKEY = "give the ledger (poison_redis_url) a Redis or Valkey"


def _persistence(client: redis.Redis, info: Info) -> Finding:
    for name, cure in _WRITE_ERRORS.items():
        if info.get(name, "ok") != "ok":
            return Finding("persistence", "FAIL", f"the last write to disk failed ({name})", cure)
    if info.get("aof_enabled"):
        return Finding("persistence", "ok", "append-only file")
    if _snapshots(client, info):
        cure = "set appendonly yes, so that a crash of Redis forgets one second instead of minutes"
        return Finding("persistence", "warn", "snapshots only", cure)
    cure = "set appendonly yes"
    return Finding("persistence", "warn", "none: a restart of Redis forgets quarantine and counts", cure)


_WRITE_ERRORS = {
    "rdb_last_bgsave_status": "look into Redis' log: disk full, or no permission; Redis may refuse writes",
    "aof_last_write_status": "look into Redis' log: disk full, or no permission",
}


def _snapshots(client: redis.Redis, info: Info) -> bool:
    try:
        return bool(client.config_get("save").get("save"))
    except redis.RedisError:  # managed servers forbid CONFIG
        return bool(info.get("rdb_saves"))


def _eviction(info: Info) -> Finding:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    cure = "set maxmemory-policy noeviction, or give the ledger a Redis of its own (poison_redis_url)"
    if policy.startswith("allkeys-"):
        return Finding("eviction", "FAIL", f"{policy}: Redis may throw away quarantined messages", cure)
    if policy.startswith("volatile-"):
        return Finding(
            "eviction", "warn", f"{policy}: Redis may forget what workers told about themselves", cure
        )
    return Finding("eviction", "ok", policy)


def _memory(info: Info) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    used_now = f"{used / 2**20:.0f} MiB used"
    if not limit:
        return Finding("memory", "ok", f"{used_now}, no limit")
    share = used / limit
    cure = "raise maxmemory, or purge what quarantine no longer needs" if share > NEARLY_FULL else ""
    return Finding(
        "memory", "warn" if cure else "ok", f"{used_now} of {limit / 2**20:.0f} MiB ({share:.0%})", cure
    )


def _role(info: Info) -> Finding:
    if info.get("role") not in ("slave", "replica"):
        return Finding("role", "ok", "primary")
    cure = f"use the primary: {info.get('master_host')}:{info.get('master_port')}"
    return Finding("role", "FAIL", "this is a replica: nothing can be recorded", cure)


def encryption(client: redis.Redis) -> Finding:
    """Tell how the connection is protected."""
    pool: Any = client.connection_pool
    if not issubclass(pool.connection_class, redis.SSLConnection):
        return Finding("encryption", "ok", "none")
    if pool.connection_kwargs.get("ssl_cert_reqs", "required") == "required":
        return Finding("encryption", "ok", "TLS, and the server's certificate is verified")
    cure = "set ssl_cert_reqs='required', and ssl_ca_certs if need be, where the URL or broker_use_ssl is set"
    return Finding("encryption", "warn", "TLS, but anybody may pretend to be the server", cure)


def durability(client: redis.Redis, wanted: str) -> Finding:
    """Check what ``poison_durability="sync"`` rests on, or would rest on."""
    try:
        means = find_means(client)
    except NoPromise as error:
        if wanted == "sync":
            return Finding("durability", "FAIL", error.found, error.cure)
        return Finding("durability", "ok", f"process; sync is not possible here ({error.found})")
    if wanted == "sync":
        return Finding("durability", "warn" if means.slow else "ok", f"sync: {means.said}", means.slow)
    return Finding("durability", "ok", f"process; sync is possible: {means.said}")


def clock(client: redis.Redis) -> Iterator[Finding]:
    """Compare this host's clock with Redis', half a round trip taken off."""
    before = time.time()
    try:
        answer: Any = client.time()
    except redis.exceptions.NoPermissionError:
        return  # the permissions say so
    middle = (before + time.time()) / 2
    difference = answer[0] + answer[1] / 1e6 - middle
    said = f"this host and Redis differ by {abs(difference):.3f} s"
    cure = (
        "synchronise both by NTP: run times and ages are wrong by that much" if abs(difference) > SKEW else ""
    )
    yield Finding("clock", "warn" if cure else "ok", said, cure)


# --- what this Redis user may do ---------------------------------------------------------------

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
