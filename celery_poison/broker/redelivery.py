"""What a transport says of a delivery that came before."""

from __future__ import annotations

from typing import Any

from kombu.transport import pyamqp, redis


def came_before(message: Any) -> bool:
    """Whether its broker says that a message was delivered before: by a flag, or by a count of its own."""
    info = message.delivery_info
    received = (info.get("sqs_message") or {}).get("Attributes") or {}
    count = str(received.get("ApproximateReceiveCount", "1"))
    return bool(info.get("redelivered")) or (count.isdigit() and int(count) > 1)


def flags_redelivery(message: Any) -> bool:
    """Whether the transport of a message says of each delivery whether it came before.

    Those of Redis and RabbitMQ do. Of any other one, even a first delivery may be a copy.
    """
    return isinstance(message.channel, (redis.Channel, pyamqp.Channel))
