"""What RabbitMQ does otherwise from one version on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Connection, Queue


def version_of(connection: Any) -> tuple[int, int]:
    """Return the version of the RabbitMQ behind an open connection of amqp's; (0, 0) of another broker."""
    server = getattr(connection, "server_properties", None) or {}
    numbers = re.match(r"(\d+)\.(\d+)", str(server.get("version")))
    if server.get("product") != "RabbitMQ" or numbers is None:
        return 0, 0
    return int(numbers[1]), int(numbers[2])


def counts_no_nack(version: tuple[int, int]) -> bool:
    """Whether quorum queues count a reject, but no `basic.nack`, towards their delivery limit."""
    return version >= (4, 3)


def has_fixed_prefetch(app: Celery, connection: Connection) -> bool:
    """Whether the prefetch that a worker begins with cannot grow: what waits in it takes the place of others.

    Args:
        connection: to the app's broker, open; whatever that is.
    """
    if connection.transport.driver_type != "amqp":
        return False
    version = version_of(connection.connection)
    # RabbitMQ takes a later prefetch for all consumers until 4.2; kombu 5.7 asks for none from 4.0 on.
    is_fixed = version >= (4, 3) or (version >= (4, 0) and connection.qos_semantics_matches_spec)
    return is_fixed or (_has_quorum_queues(app) and app.conf.worker_detect_quorum_queues)


def filled_by_delays(app: Celery, connection: Connection) -> list[str]:
    """Return the queues whose delayed messages fill a worker: nothing behind them runs before their time.

    A worker has them at once, and waits. Where its prefetch can grow, it asks for one more message for each.

    Args:
        connection: as of :func:`has_fixed_prefetch`.
    """
    if not has_fixed_prefetch(app, connection):
        return []
    has_quorum = _has_quorum_queues(app)
    return sorted(_names(app.amqp.queues.consume_from.values(), is_delayed_there=has_quorum))


def _has_quorum_queues(app: Celery) -> bool:
    has_any, _ = detect_quorum_queues(app, "amqp")
    return bool(has_any)


def _names(queues: Iterable[Queue], *, is_delayed_there: bool) -> Iterable[str]:
    for queue in queues:
        # Celery has RabbitMQ delay what goes by no direct exchange, where any queue is a quorum queue.
        is_direct = queue.exchange is None or queue.exchange.type == "direct"
        if is_direct or not is_delayed_there:
            yield queue.name
