"""Dramatiq, on Redis and on RabbitMQ."""

from __future__ import annotations

import os
from typing import Any

import dramatiq
from peer import BEST, NAMES, POISON, URL, run

IS_REDIS = URL.startswith("redis")
broker: Any
if IS_REDIS:
    from dramatiq.brokers.redis import RedisBroker

    options = {"heartbeat_timeout": 5000, "maintenance_chance": 1_000_000} if BEST else {}
    broker = RedisBroker(url=URL, **options)
else:
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=URL)
if BEST:
    os.environ["dramatiq_queue_prefetch"] = "1"  # noqa: SIM112
dramatiq.set_broker(broker)
work = dramatiq.actor(run, max_retries=3)


def send() -> None:
    for name in NAMES:
        work.send(name)


def fate() -> str:
    if not IS_REDIS:
        counts = broker.get_queue_message_counts("default")
        return "loops" if counts[0] > 1 else "gone"
    client = broker.client
    bodies = client.hgetall("dramatiq:default.msgs")
    ids = [key.decode() for key, body in bodies.items() if POISON.encode() in body]
    if not ids:
        return "dead letter" if client.zcard("dramatiq:default.XQ") else "gone"
    held = [key for key in client.keys("dramatiq:__acks__.*") if client.sismember(key, ids[0])]
    return "held" if held else "waits"
