"""Opening Redis for the ledger: URL forms, time-outs, one kind of error, and what makes a server unfit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_poison.errors import ConfigurationError, LedgerUnavailable
from celery_poison.ledger import cluster
from celery_poison.ledger.credentials import without_provider
from celery_poison.ledger.in_step import keep_in_step
from celery_poison.ledger.keys import Keys
from celery_poison.ledger.tls import without_tls
from celery_poison.ledger.urls import fit_for_redis

#: Seconds; long enough for a busy Redis, short enough that no caller waits long for a dead one.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0

#: For connections to a Sentinel: there are others to ask, and without these one that does not answer is
#: waited for a minute.
_SENTINEL_OPTIONS = {"socket_connect_timeout": 0.5, "socket_timeout": 0.5, "retry": None}

#: Newer redis-py reads its version from its package's files for each connection: two thirds of the cost of a
#: connection.
_NAMELESS: dict[str, Any] = {"driver_info": None} if hasattr(redis, "driver_info") else {}

MINIMUM_VERSION = (6, 2)

#: What redis-py raises when the server is away, overloaded, read-only or out of memory.
REDIS_ERRORS = (redis.RedisError, OSError)


class Namespace(Protocol):
    """Where a ledger is: a Redis, and the keys of its namespace there."""

    client: redis.Redis
    keys: Keys


def open_redis(url: str, options: Mapping[str, Any] | None = None, *, key: str = "{poison}:") -> redis.Redis:
    """Return a client for ``url``; nothing is connected yet.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+socket://`` or
            ``sentinel://host:port/db;sentinel://host:port`` URLs. TLS is spoken to ``rediss://``, and to the
            master where the first Sentinel's URL has TLS options: see :func:`with_tls`. As in kombu,
            ``?credential_provider=module.Class`` may say who logs in. ``redis://host:port;host:port?cluster=true``
            are some nodes of a cluster.
        options: the broker's transport options; only ``master_name`` and ``sentinel_kwargs`` are read.
        key: any key of the ledger; of a cluster, the client is for the owner of its slot.

    Raises:
        ConfigurationError: a Sentinel URL without a ``master_name``, or a URL that makes no sense.
    """
    _check_ports(url)
    timeouts: dict[str, Any] = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_timeout": ANSWER_TIMEOUT}
    timeouts |= _NAMELESS
    timeouts["encoding_errors"] = (
        "backslashreplace"  # a publisher may send half a surrogate pair, as JSON can
    )
    if url.startswith("sentinel://"):
        return _open_sentinel(url, dict(options or {}), timeouts)
    try:
        if cluster.is_cluster(url):
            return cluster.open_cluster(url, key, {**timeouts, "socket_keepalive": True})
        return _open_one(url, timeouts)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"poison_redis_url: {error}") from None


def _open_one(url: str, timeouts: dict[str, Any]) -> redis.Redis:
    # Of several brokers to fail over to, the first holds the ledger; Celery spells some options its way.
    url, tls = without_tls(url.split(";")[0])
    url, provider = without_provider(url)
    url = re.sub(r"^redis\+socket://", "unix://", fit_for_redis(url))
    if not url.startswith("unix://"):
        timeouts["socket_keepalive"] = True
    return redis.Redis.from_url(url, **timeouts, **tls, **provider)


def _check_ports(url: str) -> None:
    """Raise ConfigurationError where a URL ends before its host does."""
    for part in url.split(";"):
        try:
            urlsplit(part if "//" in part else f"//{part}").port  # noqa: B018
        except ValueError:
            raise ConfigurationError(
                "poison_redis_url (or the URL of the broker or backend that stands in for it): its host"
                " or port cannot be read. In a user or password write / as %2F, ? as %3F, # as %23, @ as %40"
            ) from None


def ask_once(client: redis.Redis) -> redis.Redis:
    """Have a client wait for one answer and no longer; a connection that broke unnoticed is opened anew."""
    client.set_retry(Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)))
    return client


def bound(client: redis.Redis, seconds: float) -> redis.Redis:
    """Have every call of a client end within ``seconds``.

    It may wait three times: on a connection that turns out to be lost, for a new one, and for the answer.
    """
    once = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    waits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), seconds / 3)
    client.connection_pool.connection_kwargs.update(**waits, retry=once)
    return client


def _open_sentinel(url: str, options: dict[str, Any], timeouts: dict[str, float]) -> redis.Redis:
    master = options.get("master_name")
    if not master:
        raise ConfigurationError(
            "a sentinel:// ledger needs the master's name: set broker_transport_options['master_name']"
        )
    first, *others = url.split(";")
    first, tls = without_tls(first)
    first, provider = without_provider(first)
    parts = [urlsplit(part) for part in (first, *others)]
    hosts = [(part.hostname or "localhost", part.port or 26379) for part in parts]
    # As kombu does, so that ledger and broker are in one database: the first part says which.
    db = int(parts[0].path.strip("/") or dict(parse_qsl(parts[0].query)).get("db", "0"))
    login: dict[str, Any] = provider or {
        "username": unquote(parts[0].username) if parts[0].username else None,
        "password": unquote(parts[0].password) if parts[0].password else None,
    }
    sentinel: Any = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
        hosts,
        sentinel_kwargs={**_SENTINEL_OPTIONS, **(options.get("sentinel_kwargs") or {})},
        db=db,
        ssl=bool(tls),
        **login,
        **timeouts,
        **tls,
    )
    client: redis.Redis = sentinel.master_for(master)
    keep_in_step(client.connection_pool)
    return client


def connection_from(pool: Any) -> Any:
    """Return a connection of a pool, which takes it back by ``release``: for what no client may repeat."""
    try:
        return pool.get_connection()
    except TypeError:  # redis-py before 5.3 wants to know what for
        return pool.get_connection("_")


def disconnect(client: redis.Redis) -> None:
    """Close every connection of a client, and those to its Sentinels; a later command opens new ones."""
    pool: Any = client.connection_pool
    sentinels = (
        pool.sentinel_manager.sentinels if isinstance(pool, redis.sentinel.SentinelConnectionPool) else ()
    )
    for each in (pool, *(sentinel.connection_pool for sentinel in sentinels)):
        each.disconnect()


#: By what Redis says, since the errors of scripts have no class of their own before Redis 7.
_REFUSALS = {
    "used memory > 'maxmemory'": "is out of memory and refuses writes",
    "read only replica": "is a read-only replica",
}


@contextmanager
def clear_errors(doing: str) -> Iterator[None]:
    """Turn every error of Redis into a :class:`LedgerUnavailable` that says what was being done."""
    try:
        yield
    except redis.exceptions.AuthenticationError:
        raise LedgerUnavailable(f"{doing}: Redis refuses the user name or password") from None
    except redis.exceptions.ResponseError as error:
        reasons = [why for text, why in _REFUSALS.items() if text in str(error)] or ["refuses the command"]
        raise LedgerUnavailable(f"{doing}: Redis {reasons[0]}: {error}") from error
    except redis.exceptions.DataError:
        raise  # not the server's fault: redis-py cannot send this value
    except REDIS_ERRORS as error:
        # The text of connection errors names host and port, never credentials.
        raise LedgerUnavailable(f"{doing}: Redis is not reachable: {error}") from error


def who_answers(client: redis.Redis) -> tuple[str, float]:
    """Return the run id of the server and for how many seconds it has been running.

    Raises:
        LedgerUnavailable: not reachable, or it may not be asked.
    """
    with clear_errors("asking Redis who it is"):
        info: Any = client.info("server")
    return str(info["run_id"]), float(info["uptime_in_seconds"])


def minimum_version(client: redis.Redis) -> tuple[int, int]:
    """Return the version of Redis from which on it can be this client's ledger."""
    return MINIMUM_VERSION if cluster.owner_of(client.connection_pool) is None else cluster.MINIMUM_VERSION


def check_server(client: redis.Redis) -> list[str]:
    """Return the weaknesses of the server as a ledger, the most serious first; empty when all is well.

    Raises:
        ConfigurationError: too old, or it may evict keys at will: both break every promise.
        LedgerUnavailable: not reachable.
    """
    with clear_errors("checking Redis"):
        info: Any = client.info()
    saving: Any = {}
    with suppress(redis.RedisError):  # this user may not ask
        saving = client.config_get("save")
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    minimum = minimum_version(client)
    if version < minimum:
        raise ConfigurationError(
            f"Redis {info['redis_version']} is too old for the ledger:"
            f" {'.'.join(map(str, minimum))} or newer is needed"
        )
    eviction = str(info.get("maxmemory_policy", "noeviction"))
    if eviction.startswith("allkeys-"):
        raise ConfigurationError(
            f"Redis evicts keys at will (maxmemory-policy {eviction}): set it to noeviction,"
            " or give the ledger a Redis of its own with poison_redis_url"
        )
    warnings = []
    if eviction.startswith("volatile-"):
        warnings.append(f"maxmemory-policy {eviction} may evict the heartbeats of workers")
    if info.get("role") in ("slave", "replica"):
        warnings.append("this Redis is a replica: it refuses writes")
    if not info.get("aof_enabled") and not saving.get("save", "unknown"):
        warnings.append("this Redis has no persistence: a restart forgets every count")
    return warnings
