"""Checks of ``celery poison doctor`` on a ledger's cluster: how long the ledger can be away, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import redis

from celery_poison.basics.parts import Finding
from celery_poison.ledger.cluster import owner_of

#: Milliseconds of cluster-node-timeout above which a node's death leaves tasks unguarded for long.
PATIENT = 5000
#: How much longer than that it takes until a replica owns the slots: the nodes must agree first.
TO_AGREE = 1.5
#: From which Valkey on a slot moves as a whole.
WHOLE = 9


def cluster(client: redis.Redis, durability: str) -> Iterator[Finding]:
    """Check what interrupts a ledger on a cluster; nothing is found of a single Redis."""
    pool: Any = client.connection_pool
    if owner_of(pool) is None:
        return
    try:
        config: Any = client.config_get("cluster-*")
        info: Any = client.info()
    except redis.ResponseError:  # not allowed, or renamed away as managed servers do
        cure = "look at cluster-node-timeout and cluster-require-full-coverage in the service's settings"
        yield Finding("cluster", "how long the ledger can be away cannot be checked", cure)
        return
    yield _failover(config)
    yield _coverage(config)
    yield _moves(info)
    if durability == "sync":
        yield _replicas(info)


def _failover(config: Mapping[str, str]) -> Finding:
    timeout = int(config.get("cluster-node-timeout", 15000))
    seconds = timeout / 1000 * TO_AGREE
    cure = "set cluster-node-timeout 5000 on every node" if timeout > PATIENT else ""
    return Finding("failover", f"if its node dies, the ledger is away for about {seconds:.0f} s", cure)


def _coverage(config: Mapping[str, str]) -> Finding:
    if config.get("cluster-require-full-coverage") == "no":
        return Finding("coverage", "the ledger does not depend on other masters")
    finding = "if any other master dies, the ledger is away until a replica takes over"
    return Finding("coverage", finding, "set cluster-require-full-coverage no on every node")


def _moves(info: Mapping[str, Any]) -> Finding:
    version = str(info.get("valkey_version", ""))
    if version and int(version.partition(".")[0]) >= WHOLE:
        return Finding("moves", "CLUSTER MIGRATESLOTS moves the ledger in a moment")
    return Finding("moves", "while its slot moves, key by key, the ledger is as good as away")


def _replicas(info: Mapping[str, Any]) -> Finding:
    number = int(info.get("connected_slaves", 0))
    if number > 1:
        return Finding("replicas", f"{number}: one is left to wait for when the other takes over")
    finding = f"{number}: after a failover each start waits in vain until there is another"
    return Finding("replicas", finding, "give the master of the ledger's slot two replicas")
