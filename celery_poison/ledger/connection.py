"""Opening Redis for the ledger: URL forms, TLS, time-outs, one kind of error, and whose ledger it is.

How to speak TLS is a part of the ledger's URL: who has the URL needs nothing else to connect. Celery keeps it
apart, in ``broker_use_ssl`` and ``redis_backend_use_ssl``; redis-py reads it from the URL.
"""

from __future__ import annotations

import inspect
import os
import re
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import redis
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_poison.errors import ConfigurationError, LedgerUnavailable, SchemaMismatch
from celery_poison.ledger.keys import Keys

#: Seconds; long enough for a busy Redis, short enough that nobody waits on a dead one.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0

#: For connections to a Sentinel: there are others to ask, and without these one that does not answer is
#: waited for a minute.
_SENTINEL_OPTIONS = {"socket_connect_timeout": 0.5, "socket_timeout": 0.5, "retry": None}

MINIMUM_VERSION = (6, 2)

#: What redis-py raises when the server is away, overloaded, read-only or out of memory.
REDIS_ERRORS = (redis.RedisError, OSError)


def open_redis(url: str, options: Mapping[str, Any] | None = None) -> redis.Redis:
    """Return a client for ``url``; nothing is connected yet.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+socket://`` or
            ``sentinel://host:port/db;sentinel://host:port`` URLs. TLS is spoken to ``rediss://``, and to the
            master where the first Sentinel's URL has TLS options: see :func:`with_tls`.
        options: the broker's transport options; only ``master_name`` and ``sentinel_kwargs`` are read.

    Raises:
        ConfigurationError: a Sentinel URL without a ``master_name``, or a URL that makes no sense.
    """
    _check_ports(url)
    timeouts: dict[str, Any] = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_timeout": ANSWER_TIMEOUT}
    timeouts["encoding_errors"] = "backslashreplace"  # anybody may send half a surrogate pair, as JSON can
    if url.startswith("sentinel://"):
        return _open_sentinel(url, dict(options or {}), timeouts)
    # Of several brokers to fail over to, the first holds the ledger; Celery spells some options its way.
    url, tls = without_tls(url.split(";")[0])
    url = re.sub(r"^redis\+socket://", "unix://", url.replace("virtual_host=", "db="))
    if not url.startswith("unix://"):
        timeouts["socket_keepalive"] = True
    try:
        return redis.Redis.from_url(url, **timeouts, **tls)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"poison_redis_url: {error}") from None


def _check_ports(url: str) -> None:
    """Raise ConfigurationError where a URL ends before its host does."""
    for part in url.split(";"):
        try:
            urlsplit(part).port  # noqa: B018
        except ValueError:
            raise ConfigurationError(
                "poison_redis_url (or the URL of the broker or backend that stands in for it): its host"
                " or port cannot be read. In a user or password write / as %2F, ? as %3F, # as %23, @ as %40"
            ) from None


def ask_once(client: redis.Redis) -> redis.Redis:
    """Have a client wait for one answer and no longer; a connection that broke unnoticed is opened anew."""
    client.set_retry(Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)))
    return client


def _open_sentinel(url: str, options: dict[str, Any], timeouts: dict[str, float]) -> redis.Redis:
    master = options.get("master_name")
    if not master:
        raise ConfigurationError(
            "a sentinel:// ledger needs the master's name: set broker_transport_options['master_name']"
        )
    first, *others = url.split(";")
    first, tls = without_tls(first)
    parts = [urlsplit(part) for part in (first, *others)]
    hosts = [(part.hostname or "localhost", part.port or 26379) for part in parts]
    # As kombu does, so that ledger and broker are in one database: the first part says which.
    db = int(parts[0].path.strip("/") or dict(parse_qsl(parts[0].query)).get("db", "0"))
    password = unquote(parts[0].password) if parts[0].password else None
    sentinel: Any = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
        hosts,
        sentinel_kwargs={**_SENTINEL_OPTIONS, **(options.get("sentinel_kwargs") or {})},
        db=db,
        username=unquote(parts[0].username) if parts[0].username else None,
        password=password,
        ssl=bool(tls),
        **timeouts,
        **tls,
    )
    client: redis.Redis = sentinel.master_for(master)
    return client


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
        told = [why for text, why in _REFUSALS.items() if text in str(error)] or ["refuses the command"]
        raise LedgerUnavailable(f"{doing}: Redis {told[0]}: {error}") from error
    except redis.exceptions.DataError:
        raise  # no matter of Redis: a value that it cannot be given
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


def check_server(client: redis.Redis) -> list[str]:
    """Return what is wrong with the server for a ledger, most serious first; empty when all is well.

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
    if version < MINIMUM_VERSION:
        raise ConfigurationError(
            f"Redis {info['redis_version']} is too old for the ledger: 6.2 or newer is needed"
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


# --- whose ledger it is ---------------------------------------------------------------------------

SCHEMA = 1
#: Scripts of this version work on these schemas, so that workers can be upgraded one by one.
ACCEPTED = (SCHEMA, SCHEMA - 1)


def enroll(
    client: redis.Redis,
    keys: Keys,
    app: str,
    broker: str,
    address: str = "",
    is_same: Callable[[Mapping[str, str]], bool] = lambda found: False,
) -> bytes:
    """Check that the ledger belongs to this app and broker; return its secret for fingerprints.

    Args:
        broker: kind and virtual host.
        address: host and port of it, or of each that one fails over to, with spaces between them; empty for
            a broker without any.
        is_same: whether the broker that signed the ledger is this one, by another name; asked only where the
            address is a new one.

    Raises:
        SchemaMismatch: it belongs to another schema, app or broker.
        LedgerUnavailable: Redis is away or refuses the write.
    """
    mine = {"schema": str(SCHEMA), "app": app, "broker": broker, "secret": secrets.token_hex(16)}
    mine |= {"address": address} if address else {}
    with clear_errors("opening the ledger"):
        pipe = client.pipeline()
        for name, value in mine.items():
            pipe.hsetnx(keys.meta, name, value)
        pipe.hgetall(keys.meta)
        raw: Any = pipe.execute()[-1]
    found = {key.decode(): value.decode(errors="replace") for key, value in raw.items()}
    refuse_unless_owned(found, mine, is_same)
    known = {*found.get("address", "").split()}
    if new := {*address.split()} - known:
        sign_broker(client, keys, address=" ".join(sorted(known | new)))
    return bytes(raw[b"secret"])


def sign_broker(client: redis.Redis, keys: Keys, **known: str) -> None:
    """Write down where the broker of this ledger is (``address``), or what it calls itself (``server``).

    Raises:
        LedgerUnavailable: Redis is away or refuses the write.
    """
    if known := {name: value for name, value in known.items() if value}:
        with clear_errors("signing the ledger"):
            client.hset(keys.meta, items=[word for pair in known.items() for word in pair])


def refuse_unless_owned(
    found: Mapping[str, str], mine: Mapping[str, str], is_same: Callable[[Mapping[str, str]], bool]
) -> None:
    """Compare how a ledger is signed with how this app signs it.

    Raises:
        SchemaMismatch: it belongs to another schema, app or broker.
    """
    schema = found.get("schema", "")
    if schema not in map(str, ACCEPTED):
        raise SchemaMismatch(
            f"the ledger has schema {schema[:40]!r}, this version reads {SCHEMA}:"
            " upgrade the older workers, or set another poison_namespace"
        )
    for name in ("app", "broker"):
        if found.get(name) != mine[name]:
            raise SchemaMismatch(
                f"this ledger belongs to {name} {found.get(name)!r}, not to {mine[name]!r}: its messages"
                " would go to the wrong place. Choose the right app with -A, or its poison_namespace:"
                " every app has its own"
            )
    known, here = found.get("address", "").split(), mine.get("address", "").split()
    # Another name may lead to the same server; what it calls itself is known once a worker was connected.
    if known and here and not {*known} & {*here} and found.get("server") and not is_same(found):
        raise SchemaMismatch(
            f"this ledger belongs to the broker at {' '.join(known)}, not to that at {' '.join(here)}:"
            " its messages would go to the wrong place. Give this one its own poison_namespace; or, if the"
            " broker has moved, stop the workers of the old one and run"
            " `celery -A proj poison doctor --broker-moved` once"
        )


# --- TLS as a part of the URL ---------------------------------------------------------------------

_PREFIX = "ssl_"
_KNOWN = frozenset(inspect.signature(redis.SSLConnection).parameters)
_NO = ("false", "0", "no", "")


def with_tls(url: str, options: object) -> str:
    """Return ``url`` with these options in it; what it says itself is left as it is.

    Args:
        url: of the forms that :func:`celery_poison.ledger.connection.open_redis` takes; of several
            servers the first is told.
        options: what Celery or kombu was told: a mapping of redis-py's ``ssl_*`` arguments. They ignore
            anything else, and so does this. A Unix socket needs none.

    Raises:
        ConfigurationError: one of them cannot be written down.
    """
    if not isinstance(options, Mapping) or url.startswith(("unix:", "redis+socket:")):
        return url
    first, *others = url.split(";")
    address, query = _divided(first)
    told = {
        name: _written(name, value)
        for name, value in options.items()
        # Of the others None is the default; it is this one's word for no verification.
        if name.startswith(_PREFIX) and (value is not None or name == "ssl_cert_reqs")
    }
    return ";".join([_joined(address, told | query), *others])


def without_tls(url: str) -> tuple[str, dict[str, Any]]:
    """Return ``url`` (a single one) without its TLS options, and these as redis-py's arguments.

    As in kombu, whoever names such an option speaks TLS, also to ``redis://``.

    Raises:
        ConfigurationError: one of them means nothing, or its value does.
    """
    address, query = _divided(url)
    options = {name: _read(name, value) for name, value in query.items() if name.startswith(_PREFIX)}
    rest = {name: value for name, value in query.items() if name not in options}
    if options:
        address = re.sub("^redis:", "rediss:", address)
    return _joined(address, rest), options


def _divided(url: str) -> tuple[str, dict[str, str]]:
    address, _, query = url.partition("?")
    return address, dict(parse_qsl(query, keep_blank_values=True))


def _joined(address: str, query: Mapping[str, str]) -> str:
    return f"{address}?{urlencode(query, quote_via=quote)}" if query else address


def _written(name: str, value: Any) -> str:
    if name == "ssl_cert_reqs" and value in (None, *ssl.VerifyMode):
        return ssl.VerifyMode(value or 0).name.removeprefix("CERT_").lower()
    if isinstance(value, ssl.TLSVersion):
        return value.name
    if isinstance(value, (str, bool, os.PathLike)):
        return str(value)
    raise ConfigurationError(
        f"{name}={value!r} cannot be a part of the ledger's URL: use text, or set poison_redis_url"
    )


def _read(name: str, value: str) -> Any:
    match name:
        case "ssl_cert_reqs":
            found = re.fullmatch(r"(?:ssl\.)?(?:CERT_)?(none|optional|required)", value, re.IGNORECASE)
            if found is None:
                raise ConfigurationError(f"ssl_cert_reqs={value}: use none, optional or required")
            return found[1].lower()
        case "ssl_min_version":
            known = ssl.TLSVersion.__members__
            if value not in known:
                raise ConfigurationError(f"ssl_min_version={value}: use one of {', '.join(known)}")
            return ssl.TLSVersion[value]
        case "ssl_check_hostname" | "ssl_validate_ocsp" | "ssl_validate_ocsp_stapled":
            return value.lower() not in _NO
    if name not in _KNOWN:
        raise ConfigurationError(f"{name}: redis-py knows no such option")
    return value
