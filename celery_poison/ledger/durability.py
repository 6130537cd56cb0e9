"""Starts that survive Redis itself (EMS-10): how one gets on disk or on a replica, and waiting for it.

Disk comes before replica, for what was on a replica only is lost where Redis is started again in its
own place. Under Sentinel it is the other way round: there the replica takes its place.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import redis
import redis.sentinel

from celery_poison.errors import ConfigurationError
from celery_poison.ledger.connection import REDIS_ERRORS, clear_errors

#: Seconds that a start may wait for its promise.
PROMISE_TIMEOUT = 5.0
_PROMISE_TIMEOUT_MS = str(int(PROMISE_TIMEOUT * 1000))
#: Seconds by which Redis may be late with the answer that its own patience has ended.
GRACE = 1.0

#: Closing resets the connection: what Redis has not received by then is dropped, instead of arriving late.
_NO_LINGER = struct.pack("ii", 1, 0)

#: Redis from which WAITAOF is believed. Of 7.4 and of every Valkey so far it answers up to a second
#: before the file is synced, under appendfsync everysec: https://github.com/redis/redis/pull/13793.
TRUSTED_VERSION = (8, 0)


class Means(NamedTuple):
    """How a write becomes a promise.

    Attributes:
        said: in words, for log and doctor.
        wait: the command that follows the write; none where the answer to the write is the promise.
        slow: why it is slow, and the cure; empty when it is not.
    """

    said: str
    wait: tuple[str, ...] = ()
    slow: str = ""


ALWAYS = Means("on disk before it is answered (appendfsync always)")
WAITAOF = Means("on disk, waited for (WAITAOF)", ("WAITAOF", "1", "0", _PROMISE_TIMEOUT_MS))
EVERYSEC = WAITAOF._replace(
    said="on disk, waited for (WAITAOF), with appendfsync everysec",
    slow="every start waits up to a second for Redis to sync: set appendfsync always",
)
REPLICA = Means("on a replica, waited for (WAIT)", ("WAIT", "1", _PROMISE_TIMEOUT_MS))

Info = Mapping[str, Any]


class NoPromise(ConfigurationError):
    """The ledger's Redis cannot promise that a write survives it, or does not say whether it can."""

    def __init__(self, found: str, cure: str) -> None:
        super().__init__(f"poison_durability='sync': this Redis promises nothing ({found}): {cure}")
        self.found, self.cure = found, cure


def find_means(client: redis.Redis) -> Means:
    """Ask Redis what it can promise; changes nothing.

    Raises:
        NoPromise: nothing, or this user may not find out; names what was found and the cures.
        LedgerUnavailable: not reachable.
    """
    sentinel = isinstance(client.connection_pool, redis.sentinel.SentinelConnectionPool)
    with clear_errors("asking Redis what it can promise"):
        try:
            info: Any = client.info()
        except redis.exceptions.NoPermissionError as error:
            raise NoPromise("INFO is not allowed", "ACL SETUSER <user> +info") from error
        try:
            config: Any = client.config_get("*appendfsync*")
        except redis.exceptions.ResponseError:  # not allowed, or renamed away as managed servers do
            config = None
        means = choose(info, config, sentinel=sentinel)
        if means.wait:  # asked for nothing, to see whether it is there and allowed
            name, *counts, _ = means.wait
            try:
                client.execute_command(name, *("0" for _ in counts), "1")  # type: ignore[no-untyped-call]
            except redis.exceptions.ResponseError as error:
                raise NoPromise(f"{name}: {error}", f"ACL SETUSER <user> +{name.lower()}") from error
    return means


def choose(info: Info, config: Mapping[str, str] | None, *, sentinel: bool) -> Means:
    """Choose by INFO and CONFIG GET; ``config`` None where CONFIG is not allowed.

    Raises:
        NoPromise: there is nothing to choose from.
    """
    slaves = (info.get(f"slave{number}", {}) for number in range(int(info.get("connected_slaves", 0))))
    has_replica = info.get("role") == "master" and any(row.get("state") == "online" for row in slaves)
    disk, replica = _disk(info, config), REPLICA if has_replica else None
    means = (replica or disk) if sentinel else (disk or replica)
    if means is None:
        raise NoPromise("; ".join(_found(info, config)), _cures(info, config))
    return means


def _disk(info: Info, config: Mapping[str, str] | None) -> Means | None:
    if not info.get("aof_enabled") or config is None or info.get("role") != "master":
        return None
    always = config.get("appendfsync") == "always"
    if _is_trusted(info) and (always or config.get("appendfsync") == "everysec"):
        return WAITAOF if always else EVERYSEC
    # With no-appendfsync-on-rewrite, "always" means: except during a rewrite.
    return ALWAYS if always and config.get("no-appendfsync-on-rewrite") == "no" else None


def _is_trusted(info: Info) -> bool:
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    return version >= TRUSTED_VERSION and "valkey_version" not in info


def _found(info: Info, config: Mapping[str, str] | None) -> Iterator[str]:
    valkey = info.get("valkey_version")
    yield f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
    if info.get("role") != "master":
        yield "itself a replica"
        return
    yield f"appendonly {'yes' if info.get('aof_enabled') else 'no'}"
    if config is None:
        yield "appendfsync unknown, because CONFIG GET is not allowed"
    else:
        yield from (f"{name} {value}" for name, value in sorted(config.items()))
    yield "no connected replica"


def _cures(info: Info, config: Mapping[str, str] | None) -> str:
    if info.get("role") != "master":
        return "use the primary"
    cures = []
    if config is None:
        cures.append("allow this user to ask (ACL SETUSER <user> +config|get)")
    if config is None or not info.get("aof_enabled") or not _is_trusted(info):
        cures.append("set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no")
    else:
        cures.append("set appendfsync always (or everysec, at up to a second for each start)")
    return "; or ".join([*cures, "connect a replica", "set poison_durability='process'"])


class WaitingWriter:
    """Writes that are waited for, on a connection of their own; one for each process.

    Thread-safe: one writes at a time. Connects at the first write, again after a fork, and when the server
    has closed the connection. A write that failed may have been carried out all the same.
    """

    def __init__(self, client: redis.Redis, patience: float = PROMISE_TIMEOUT + GRACE) -> None:
        self._pool: Any = client.connection_pool
        self._patience = patience
        self._lock = threading.Lock()
        self._connection: Any = None
        self._pid = 0

    def write(self, commands: bytes, count: int) -> list[Any]:
        """Send ``count`` commands in Redis' wire format, and return their answers.

        Raises:
            LedgerUnavailable: Redis is away, silent for too long, or refuses one of them.
        """
        self._adopt_process()
        with self._lock, clear_errors("waiting for a write"):
            try:
                self._connect()
                self._connection.send_packed_command([commands])
                return [self._connection.read_response() for _ in range(count)]
            except BaseException:  # a time limit too: half an answer may be lost
                self._drop()
                raise

    def renew(self) -> None:
        """Connect anew for the next write: another server may have taken over."""
        self._adopt_process()
        with self._lock:
            self._drop()

    def _adopt_process(self) -> None:
        if self._pid != os.getpid():  # the parent's socket must not be shared, its lock may have been held
            self._lock, self._connection, self._pid = threading.Lock(), None, os.getpid()

    def _connect(self) -> None:
        if self._connection is not None and self._is_closed():
            self._drop()
        if self._connection is None:
            options = {**self._pool.connection_kwargs, "socket_timeout": self._patience}
            self._connection = self._pool.connection_class(**options)
            self._connection.connect()
            self._connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    def _is_closed(self) -> bool:
        try:
            return bool(self._connection.can_read())  # nothing is owed: there is nothing to read but the end
        except REDIS_ERRORS:
            return True

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
