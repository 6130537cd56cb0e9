"""Where an exchange leads to, by what an app knows of its queues."""

from __future__ import annotations

from collections.abc import Sequence

from kombu import Queue
from kombu.transport.virtual.exchange import STANDARD_EXCHANGE_TYPES


def routed_to(queues: Sequence[Queue], exchange: str, key: str) -> Sequence[str]:
    """Return which of the queues of one exchange get a message with this routing key."""
    kind = STANDARD_EXCHANGE_TYPES.get(queues[0].exchange.type) if queues else None
    if kind is None:
        return []
    matcher = kind(None)
    table = [matcher.prepare_bind(each.name, exchange, each.routing_key, {}) for each in queues]
    return sorted({name for name in matcher.lookup(table, exchange, key, None) if name})
