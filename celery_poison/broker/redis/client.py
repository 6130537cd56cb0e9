"""A client of redis-py on the connections of kombu's Redis channel, and what it may do there."""

from __future__ import annotations

from typing import Any

import redis

from celery_poison.ledger.in_step import keep_in_step


def client_of(channel: Any) -> redis.Redis:
    """Return a client on the connections of kombu's Redis channel; it writes keys in full."""
    keep_in_step(channel.pool)
    return redis.Redis(connection_pool=channel.pool)


def is_one_database(channel: Any, ledger: redis.Redis) -> bool:
    """Whether the queues of a channel are in the ledger's Redis database."""
    broker = client_of(channel)
    try:
        return _identity(broker) == _identity(ledger)
    except (redis.RedisError, OSError, KeyError):  # it may not be asked
        return False


def _identity(client: redis.Redis) -> tuple[str, int]:
    info: Any = client.info("server")
    return str(info["run_id"]), int(client.connection_pool.connection_kwargs.get("db") or 0)


def queued_and_dropped(client: redis.Redis, *words: str) -> redis.ResponseError | None:
    """Return why Redis refuses a command, which is not executed: its transaction ends with its connection.

    Raises:
        redis.ResponseError: there can be no transaction.
    """
    pool = client.connection_pool
    connection: Any = pool.connection_class(**pool.connection_kwargs)
    try:
        connection.connect()
        connection.send_command("MULTI")
        connection.read_response()
        connection.send_command(*words)
        try:
            connection.read_response()
        except redis.ResponseError as error:
            return error
    finally:
        connection.disconnect()
    return None
