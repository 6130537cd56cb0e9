"""What is still there when all should be quiet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import redis

from celery_poison.chaos.stage import Stage
from celery_poison.ledger.keys import Keys

QUEUE = "celery"
#: States of a parking that may stay on record.
OVER = ("finished", "kept")


def remains(stage: Stage) -> dict[str, int]:
    """Return what is left of the broker's and the ledger's, by name; empty if nothing is.

    Raises:
        redis.RedisError: Redis is away.
    """
    found = dict(_remains(stage))
    return {name: count for name, count in found.items() if count}


def _remains(stage: Stage) -> Iterator[tuple[str, int]]:
    with stage.redis.client() as client:
        yield from _of_broker(stage, client)
        if not stage.options.plain:
            yield from _of_ledger(client)


def _of_broker(stage: Stage, client: redis.Redis) -> Iterator[tuple[str, int]]:
    if stage.rabbit is not None:
        with stage.app.connection_for_read() as connection, connection.default_channel as channel:
            yield "queue", channel.queue_declare(QUEUE, passive=True).message_count
        return
    answers: Any = (client.llen(QUEUE), client.hlen("unacked"), client.zcard("unacked_index"))
    yield from zip(("queue", "unacked", "unacked_index"), answers, strict=True)
    yield "arriving", sum(client.type(key) == "list" for key in client.scan_iter("poison.arriving.*"))


def _of_ledger(client: redis.Redis) -> Iterator[tuple[str, int]]:
    keys = Keys()
    for name in ("running", "done", "parcels", "gone", "open"):
        fields: Any = client.hlen(getattr(keys, name))
        yield name, fields
    candidates: Any = client.zcard(keys.candidates)
    yield "candidates", candidates
    parked: Any = client.hvals(keys.parked)
    yield "parked", sum(json.loads(raw)[0] not in OVER for raw in parked)
    yield "lineages", sum(1 for _ in client.scan_iter(_literally(keys.lineage("")) + "*"))


def _literally(prefix: str) -> str:
    """As a pattern of Redis."""
    return "".join(f"\\{letter}" if letter in "{}[]?*" else letter for letter in prefix)
