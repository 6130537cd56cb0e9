"""Connections that a Sentinel or a cluster led to: questions and answers stay in step, and they move on."""

from __future__ import annotations

from functools import cache
from typing import Any

import redis.sentinel
from redis.exceptions import AskError, ClusterDownError, ResponseError, TryAgainError

#: What a node refuses that has given a slot away (MOVED is an ASK for redis-py), or is about to.
_NOT_HERE = (AskError, TryAgainError, ClusterDownError)
#: What a blocking command gets whose server is a replica now.
_DEMOTED = "UNBLOCKED"


class _HangsUp:
    """Mixed into redis-py's Sentinel connections, which stay open when waiting for an answer is broken off.

    That answer then comes as the answer to the next question, and so on for ever. redis-py's other
    connections hang up. These do so also where another server is to be asked, and ask which before they
    connect anew: redis-py from 6 on would go where it was.
    """

    _sock: Any

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        parent: Any = super()
        if not self._sock:
            parent.connect()
        parent.send_packed_command(command, check_health)

    def read_response(self, *args: Any, disconnect_on_error: bool = True, **options: Any) -> Any:
        parent: Any = super()
        try:
            return parent.read_response(*args, disconnect_on_error=disconnect_on_error, **options)
        except ResponseError as error:
            if not isinstance(error, _NOT_HERE) and not str(error).startswith(_DEMOTED):
                raise
            parent.disconnect()
            raise redis.ConnectionError(f"another server has this key, or soon will: {error}") from None


@cache
def hanging_up(kind: Any) -> Any:
    """Return a class of connections as one that hangs up when its answers do not come from there."""
    if not issubclass(kind, redis.sentinel.SentinelManagedConnection) or issubclass(kind, _HangsUp):
        return kind
    return type(kind.__name__, (_HangsUp, kind), {})


def keep_in_step(pool: Any) -> None:
    """Have the connections of a pool, open ones too, hang up when their answers do not come from there."""
    if not isinstance(pool, redis.sentinel.SentinelConnectionPool):
        return
    pool.connection_class = hanging_up(pool.connection_class)
    for connection in list(getattr(pool, "_available_connections", ())):
        kind: Any = type(connection)
        connection.__class__ = hanging_up(kind)
