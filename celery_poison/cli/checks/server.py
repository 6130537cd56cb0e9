"""The ledger's Redis: version, persistence, memory, role, latency and clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import redis

from celery_poison.cli.checks.finding import Finding
from celery_poison.ledger.connection import MINIMUM_VERSION, clear_errors
from celery_poison.ledger.durability import NoPromise, find_means

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
    told = str(info["redis_version"])
    if tuple(int(part) for part in told.split(".")[:2]) < MINIMUM_VERSION:
        return Finding("version", "FAIL", f"Redis {told} is too old", "use Redis 6.2 or newer")
    return Finding("version", "ok", f"Redis {told}")


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
    told = f"{used / 2**20:.0f} MiB used"
    if not limit:
        return Finding("memory", "ok", f"{told}, no limit")
    share = used / limit
    cure = "raise maxmemory, or purge what quarantine no longer needs" if share > NEARLY_FULL else ""
    return Finding(
        "memory", "warn" if cure else "ok", f"{told} of {limit / 2**20:.0f} MiB ({share:.0%})", cure
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
        told: Any = client.time()
    except redis.exceptions.NoPermissionError:
        return  # the permissions say so
    middle = (before + time.time()) / 2
    difference = told[0] + told[1] / 1e6 - middle
    said = f"this host and Redis differ by {abs(difference):.3f} s"
    cure = (
        "synchronise both by NTP: run times and ages are wrong by that much" if abs(difference) > SKEW else ""
    )
    yield Finding("clock", "warn" if cure else "ok", said, cure)
