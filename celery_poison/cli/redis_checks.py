"""What ``celery poison doctor`` asks Redis: version, persistence, memory, clock, and what this user may do.

Nothing that stays is changed.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import redis

from celery_poison.basics.parts import Finding
from celery_poison.ledger.cluster import owner_of
from celery_poison.ledger.connection import MINIMUM_VERSION, clear_errors, minimum_version
from celery_poison.ledger.durability import NoPromise, find_means
from celery_poison.ledger.keys import Keys

#: Milliseconds of one round trip above which a look-up becomes felt.
SLOW = 50.0
#: Seconds by which clocks may differ unnoticed.
SKEW = 1.0
#: Share of maxmemory above which the next backlog may fill it.
NEARLY_FULL = 0.9

_REDIS_OR_VALKEY = "give the ledger (poison_redis_url) a Redis or Valkey"
_WRITE_ERRORS = {
    "rdb_last_bgsave_status": "look into Redis' log: disk full, or no permission; Redis may refuse writes",
    "aof_last_write_status": "look into Redis' log: disk full, or no permission",
}

Info = Mapping[str, Any]


def reachability(client: redis.Redis, url: str) -> Finding:
    """Measure some round trips.

    Raises:
        LedgerUnavailable: there is no answer.
    """
    times = []
    with clear_errors("connecting to the ledger"):
        client.ping()
        for _ in range(5):
            begun = time.perf_counter()
            client.ping()
            times.append((time.perf_counter() - begun) * 1000)
    latency = statistics.median(times)
    cure = "put the ledger's Redis nearer to the workers" if latency > SLOW else ""
    return Finding("reachable", f"{url} answers within {latency:.1f} ms", cure)


def server(client: redis.Redis) -> Iterator[Finding]:
    """Check what INFO says."""
    try:
        info: Any = client.info()
    except redis.exceptions.NoPermissionError:
        cure = "allow INFO to this user (ACL SETUSER ... +info), or check these yourself"
        yield Finding("redis", "version, persistence and eviction cannot be checked", cure)
        return
    yield _version(info, minimum_version(client))
    yield _persistence(client, info)
    yield _eviction(info)
    yield _memory(info)
    if info.get("role") in ("slave", "replica"):
        cure = f"use the primary: {info.get('master_host')}:{info.get('master_port')}"
        yield Finding("role", "this is a replica: nothing can be recorded", cure, broken=True)
    else:
        yield Finding("role", "primary")


def _version(info: Info, minimum: tuple[int, int] = MINIMUM_VERSION) -> Finding:
    version = str(info["redis_version"])
    if "dragonfly_version" in info:
        finding = (
            f"Dragonfly {info['dragonfly_version']}: it has no run_id, by which workers notice that their"
            " ledger came back empty, has no append-only file, and was never tried"
        )
        return Finding("version", finding, _REDIS_OR_VALKEY, broken=True)
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        return Finding("version", f"Redis {version} is too old", "use Redis 6.2 or newer", broken=True)
    if tuple(int(part) for part in version.split(".")[:2]) < minimum:
        finding = f"Redis {version} is too old for a ledger on a cluster"
        return Finding("version", finding, "use Redis 7.0 or newer", broken=True)
    if "mvcc_depth" in info:
        return Finding("version", f"KeyDB {version}: never tried", _REDIS_OR_VALKEY)
    valkey = info.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {version}"
    if info.get("cluster_enabled") and minimum == MINIMUM_VERSION:
        finding = f"{name} is a node of a cluster: without its slot, it refuses every command of the ledger"
        return Finding("version", finding, "add ?cluster=true to poison_redis_url")
    return Finding("version", f"{name}, a cluster" if info.get("cluster_enabled") else name)


def _persistence(client: redis.Redis, info: Info) -> Finding:
    for name, cure in _WRITE_ERRORS.items():
        if info.get(name, "ok") != "ok":
            return Finding("persistence", f"the last write to disk failed ({name})", cure, broken=True)
    if info.get("aof_enabled"):
        return Finding("persistence", "append-only file")
    try:
        snapshots = client.config_get("save").get("save")
    except redis.RedisError:  # managed servers forbid CONFIG
        snapshots = info.get("rdb_saves")
    if snapshots:
        cure = "set appendonly yes, so that a crash of Redis forgets one second instead of minutes"
        return Finding("persistence", "snapshots only", cure)
    return Finding(
        "persistence", "none: a restart of Redis forgets quarantine and counts", "set appendonly yes"
    )


def _eviction(info: Info) -> Finding:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    cure = "set maxmemory-policy noeviction, or give the ledger a Redis of its own (poison_redis_url)"
    if policy.startswith("allkeys-"):
        finding = f"{policy}: Redis may throw away quarantined messages"
        return Finding("eviction", finding, cure, broken=True)
    if policy.startswith("volatile-"):
        return Finding("eviction", f"{policy}: Redis may forget the heartbeats of workers", cure)
    return Finding("eviction", policy)


def _memory(info: Info) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    used_now = f"{used / 2**20:.0f} MiB used"
    if not limit:
        return Finding("memory", f"{used_now}, no limit")
    share = used / limit
    cure = "raise maxmemory, or purge what quarantine no longer needs" if share > NEARLY_FULL else ""
    return Finding("memory", f"{used_now} of {limit / 2**20:.0f} MiB ({share:.0%})", cure)


def encryption(client: redis.Redis) -> Finding:
    """Tell how the connection is protected."""
    pool: Any = client.connection_pool
    if not issubclass(pool.connection_class, redis.SSLConnection):
        return Finding("encryption", "none")
    if pool.connection_kwargs.get("ssl_cert_reqs", "required") == "required":
        return Finding("encryption", "TLS, and the server's certificate is verified")
    cure = "set ssl_cert_reqs='required', and ssl_ca_certs if need be, where the URL or broker_use_ssl is set"
    return Finding("encryption", "TLS, but anybody may pretend to be the server", cure)


def durability(client: redis.Redis, wanted: str) -> Finding:
    """Check what ``poison_durability="sync"`` rests on, or would rest on."""
    try:
        means = find_means(client)
    except NoPromise as error:
        if wanted == "sync":
            return Finding("durability", error.found, error.cure, broken=True)
        kept = "process: a start outlives its worker; if Redis itself crashes, the last moments may be lost"
        return Finding("durability", kept)
    if wanted == "sync":
        return Finding("durability", f"sync: {means.said}", means.slow)
    return Finding("durability", f"process; sync is possible: {means.said}")


def clock(client: redis.Redis) -> Iterator[Finding]:
    """Compare this host's clock with Redis', half a round trip taken off."""
    before = time.time()
    try:
        answer: Any = client.time()
    except redis.exceptions.NoPermissionError:
        return  # the permissions say so
    skew = abs(answer[0] + answer[1] / 1e6 - (before + time.time()) / 2)
    cure = "synchronise both by NTP: run times and ages are wrong by that much" if skew > SKEW else ""
    yield Finding("clock", f"this host and Redis differ by {skew:.3f} s", cure)


# --- what this Redis user may do ---------------------------------------------------------------

#: Every command that the ledger, its scripts and its writers use on a key of each kind, in an order that
#: works. The keys vanish by themselves after a minute, should this process die.
_COMMANDS = {
    "string": "SET 1 PX 60000; GET; EXISTS; INCR; PEXPIRE 60000",
    "hash": "HSET a 1; EXPIRE 60; HSETNX b 1; HGET a; HMGET a; HGETALL; HEXISTS a; HLEN; HSCAN 0;"
    " HINCRBY a 1; HDEL a",
    "zset": "ZADD 1 a; EXPIRE 60; ZSCORE a; ZCARD; ZRANGE 0 -1; ZREVRANGE 0 -1; ZREMRANGEBYRANK 0 -9;"
    " ZREMRANGEBYSCORE 5 9; ZREM a",
    "stream": "XADD MAXLEN ~ 1000 * a 1; EXPIRE 60; XLEN; XRANGE - +; XREVRANGE + -",
}
_SHA_OF_RETURN_1 = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
#: How an access rule spells what is not a command of one word.
_RULES = {"SCRIPT LOAD": "+script|load", "CLIENT REPLY": "+client|reply", "MULTI EXEC": "+multi +exec"}


def rights(client: redis.Redis, keys: Keys) -> Iterator[Finding]:
    """Try every command once; afterwards nothing is left."""
    base = f"{keys.prefix}doctor:{secrets.token_hex(8)}"
    probes = {kind: f"{base}:{kind}" for kind in _COMMANDS}
    refused: dict[str, redis.exceptions.ResponseError] = {}

    def attempt(name: str, ask: Callable[..., Any], *words: object) -> None:
        try:
            ask(*words)
        except redis.exceptions.ResponseError as error:
            refused.setdefault(name, error)

    try:
        for kind, commands in _COMMANDS.items():
            for name, *words in map(str.split, commands.split("; ")):
                attempt(name, client.execute_command, name, probes[kind], *words)
        scripts: tuple[tuple[Any, ...], ...] = (
            ("EVAL", "return redis.call('GET', KEYS[1])", 1, probes["string"]),
            ("SCRIPT LOAD", "return 1"),
            ("EVALSHA", _SHA_OF_RETURN_1, 0),
            ("TIME",),
        )
        for name, *words in scripts:
            attempt(name, client.execute_command, name, *words)
        pipe = client.pipeline(transaction=True)
        pipe.time()
        attempt("MULTI EXEC", pipe.execute)
        # By it the hot path writes without waiting.
        attempt("CLIENT REPLY", _ask_alone, client, "CLIENT", "REPLY", "ON")
    finally:
        attempt("DEL", client.execute_command, "DEL", *probes.values())
    forbidden = {name: e for name, e in refused.items() if isinstance(e, redis.exceptions.NoPermissionError)}
    if forbidden:
        rules = " ".join(_RULES.get(name, f"+{name.lower()}") for name in forbidden)
        cure = f"ACL SETUSER <user> {rules}, for the keys of poison_namespace"
        yield Finding("permissions", f"not allowed: {', '.join(forbidden)}", cure, broken=True)
    else:
        yield Finding("permissions", "every command that is needed is allowed")
    yield _writable([error for name, error in refused.items() if name not in forbidden])
    yield _presence(client, keys)


def _writable(errors: Sequence[redis.RedisError]) -> Finding:
    if not errors:
        return Finding("writable", "a key was written and removed")
    finding, cure = f"Redis refuses: {errors[0]}", "look into Redis' log"
    if isinstance(errors[0], redis.exceptions.OutOfMemoryError):
        finding, cure = "Redis is out of memory", "raise maxmemory, or free some of it"
    elif isinstance(errors[0], redis.exceptions.ReadOnlyError):
        finding, cure = "Redis is a read-only replica", "use the primary"
    return Finding("writable", finding, cure, broken=True)


def _presence(client: redis.Redis, keys: Keys) -> Finding:
    """Check that a broken connection can tell of a death; all else works without it, only later.

    Subscribes as a worker's processes do, counts as a monitor does, and publishes as a nursery does.
    """
    channel = keys.channel(f"doctor/{secrets.token_hex(8)}")
    missing = list[str]()
    sharded = owner_of(client.connection_pool) is not None
    for rule, *words in (
        ("+info", "INFO", "server"),
        *([("+ssubscribe", "SSUBSCRIBE", channel)] if sharded else []),
        ("+subscribe", "SUBSCRIBE", channel),
        ("+pubsub", "PUBSUB", "SHARDNUMSUB" if sharded else "NUMSUB", channel),
        ("+publish", "PUBLISH", channel, ""),
    ):
        try:
            _ask_alone(client, *words, protocol=3)
        except redis.exceptions.ResponseError as error:
            missing.append(f"&{keys.alive}*" if "channel" in str(error) else rule)
    if not missing:
        return Finding("presence", "a worker's death is noticed by its connections")
    lacks = " ".join(dict.fromkeys(missing))
    how = "no sooner than by a monitor's next look" if missing == ["+publish"] else "by its heartbeat only"
    finding = f"a worker's death is noticed {how}: this user lacks {lacks}"
    return Finding("presence", finding, f"ACL SETUSER <user> {lacks}")


def _ask_alone(client: redis.Redis, *words: str, **options: Any) -> None:
    """Ask on a connection of its own: the answer may change what comes on it afterwards."""
    pool = client.connection_pool
    connection: Any = pool.connection_class(**{**pool.connection_kwargs, **options})
    try:
        connection.connect()
        connection.send_command(*words)
        connection.read_response(push_request=True)
    finally:
        connection.disconnect()
