"""What ``celery poison doctor`` says of RabbitMQ, by its version and by the app's settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery
from kombu import Connection

from celery_poison.basics.parts import Finding
from celery_poison.basics.text import some_of
from celery_poison.broker.rabbitmq import filled_by_delays
from celery_poison.portrait import LET_IT_DELAY


def examine(app: Celery, connection: Connection) -> Iterator[Finding]:
    """Yield what is found of a RabbitMQ that answers."""
    server: dict[str, Any] = connection.connection.server_properties
    product = f"{server.get('product', 'AMQP')} {server.get('version', '')}"
    # It puts back by itself, but not while a worker that is frozen is still connected.
    seconds = app.conf.broker_heartbeat
    how = f"={seconds}" if seconds else " is off"
    until = f"for up to {2 * seconds} s" if seconds else "until that worker ends"
    yield Finding("broker", f"{product}; broker_heartbeat{how}: it keeps what a frozen worker holds {until}")
    if names := filled_by_delays(app, connection):
        said = f"{some_of(names)}: messages with an ETA or a countdown fill a worker, and nothing else runs"
        yield Finding("delays", said, LET_IT_DELAY)
    if app.conf.get("control_queue_exclusive"):
        said = (
            "control_queue_exclusive: a worker ends with RESOURCE_LOCKED while the broker keeps a connection"
            f" of its node name, {until} after the network broke; False lets it in"
        )
        yield Finding("control", said)
