"""What ``celery poison doctor`` says of a Redis broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import redis

from celery_poison.basics.parts import Finding
from celery_poison.broker.redis.client import queued_and_dropped

_MULTI = "allow MULTI to this user, so that the right to write can be checked"


def receiving(channel: Any) -> Finding:
    """Check whether messages can be received in one step."""
    probe = f"{channel.global_keyprefix or ''}poison.doctor"
    cure = "allow them, and use Redis 6.2 or newer: a worker killed while it receives may lose that message"
    with channel.conn_or_acquire() as client:
        try:
            client.ping()
            client.execute_command("EVAL", "return redis.call('EXISTS', KEYS[1])", 1, f"{probe}.a")
            client.execute_command("BLMOVE", f"{probe}.a", f"{probe}.b", "RIGHT", "LEFT", 0.01)
        except redis.exceptions.ResponseError as error:
            return Finding("broker", f"Redis refuses EVAL or BLMOVE: {error}", cure)
    return Finding("broker", "Redis; messages are received in one step")


def announcing(channel: Any) -> Finding:
    """Check whether Redis may tell an idle worker of what comes."""
    with channel.conn_or_acquire() as client:
        try:
            client.execute_command("CLIENT", "TRACKING", "OFF")
            client.execute_command("CLIENT", "UNBLOCK", 0)  # no client has the id 0
        except redis.exceptions.ResponseError as error:
            cure = "ACL SETUSER <user> +client|tracking +client|unblock (before Redis 7: +client)"
            return Finding("idle", f"an idle worker polls its queues each second: {error}", cure)
    return Finding("idle", "an idle worker need not poll")


def writing(channel: Any, queues: Mapping[str, str]) -> Iterator[Finding]:
    """Yield for each queue whether this user may push to it."""
    for queue, words in queues.items():
        yield _writing(channel, f"{channel.global_keyprefix or ''}{queue}", words)


def _writing(channel: Any, key: str, words: str) -> Finding:
    with channel.conn_or_acquire() as client:
        try:
            error = queued_and_dropped(client, "LPUSH", key, "")
        except redis.ResponseError as unable:
            return Finding(
                "destination", f"{words}: whether it may be written to is not known: {unable}", _MULTI
            )
    if error is None:
        return Finding("destination", f"{words} may be written to")
    cure = "look into Redis' log"
    if isinstance(error, redis.exceptions.NoPermissionError):
        cure = f"ACL SETUSER <user> +lpush ~{key}: what goes there stays in quarantine until then"
    return Finding("destination", f"{words} may not be written to: {error}", cure, broken=True)
