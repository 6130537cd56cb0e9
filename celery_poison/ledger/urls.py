"""Options in the query of a Redis URL: kombu's, redis-py's, and what neither reads."""

from __future__ import annotations

import inspect
import logging
from functools import cache

import redis

from celery_poison.ledger.tls import divided, joined

logger = logging.getLogger(__name__)

#: kombu's name -> redis-py's.
_RENAMED = {"virtual_host": "db", "connect_timeout": "socket_connect_timeout"}

#: Of kombu's connections, not of Redis; and what would change the form of answers that the ledger reads.
_NOT_OURS = {
    *("heartbeat", "insist", "login_method", "uri_prefix", "failover_strategy", "transport"),
    *("hostname", "port", "userid", "password"),
    *("decode_responses", "encoding", "encoding_errors", "protocol", "legacy_responses"),
}

_KINDS = (redis.connection.AbstractConnection, redis.Connection, redis.UnixDomainSocketConnection)
_TAKEN = frozenset({"timeout", "max_connections"}).union(
    *(inspect.signature(kind.__init__).parameters for kind in _KINDS)
) - {"self", "kwargs"}


def fit_for_redis(url: str) -> str:
    """Return ``url`` with the options that redis-py takes; another one that means nothing is logged, once."""
    address, query = divided(url)
    kept: dict[str, str] = {}
    for name, value in query.items():
        name = _RENAMED.get(name, name)
        if name in _TAKEN and name not in _NOT_OURS:
            kept[name] = value
        elif name not in _NOT_OURS:
            _complain(name)
    return joined(address, kept)


@cache
def _complain(name: str) -> None:
    logger.warning("celery_poison: the option %s in the ledger's URL is ignored: redis-py has none", name)
