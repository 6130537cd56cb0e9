"""taskiq, on a stream or a list of Redis."""

from __future__ import annotations

import os
from typing import Any

import redis
from peer import BEST, NAMES, POISON, URL, run
from taskiq_redis import ListQueueBroker, RedisStreamBroker

IS_LIST = os.environ["PEER_KIND"] == "list"
options: Any = {"xread_count": 1} if BEST else {}
broker: Any = ListQueueBroker(URL) if IS_LIST else RedisStreamBroker(URL, consumer_id="0", **options)
work = broker.register_task(run, task_name="work")


async def send() -> None:
    await broker.startup()
    for name in NAMES:
        await work.kiq(name)
    await broker.shutdown()


def fate() -> str:
    client = redis.Redis.from_url(URL)
    if IS_LIST:
        return "waits" if any(POISON in str(body) for body in client.lrange("taskiq", 0, -1)) else "gone"
    ids = [entry["message_id"] for entry in client.xpending_range("taskiq", "taskiq", "-", "+", 100)]
    pending = any(POISON in str(client.xrange("taskiq", each, each)) for each in ids)
    return "pending" if pending else "gone"
