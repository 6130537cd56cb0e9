"""Questions and answers of a connection that a Sentinel led to stay in step."""

from __future__ import annotations

from functools import cache
from typing import Any

import redis.sentinel


class _HangsUp:
    """Mixed into redis-py's Sentinel connections, which stay open when waiting for an answer is broken off.

    That answer then comes as the answer to the next question, and so on for ever. redis-py's other
    connections hang up.
    """

    def read_response(self, *args: Any, disconnect_on_error: bool = True, **options: Any) -> Any:
        parent: Any = super()
        return parent.read_response(*args, disconnect_on_error=disconnect_on_error, **options)


@cache
def hanging_up(kind: Any) -> Any:
    """Return a class of connections as one that hangs up when an answer does not come."""
    if not issubclass(kind, redis.sentinel.SentinelManagedConnection) or issubclass(kind, _HangsUp):
        return kind
    return type(kind.__name__, (_HangsUp, kind), {})


def keep_in_step(pool: Any) -> None:
    """Have the connections of a pool, open ones too, hang up when an answer does not come."""
    if not isinstance(pool, redis.sentinel.SentinelConnectionPool):
        return
    pool.connection_class = hanging_up(pool.connection_class)
    for connection in list(getattr(pool, "_available_connections", ())):
        kind: Any = type(connection)
        connection.__class__ = hanging_up(kind)
