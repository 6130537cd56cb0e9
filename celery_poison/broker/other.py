"""The answers to the port for brokers that the plugin knows by kombu alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery
from kombu.transport import virtual

from celery_poison.basics.parts import Finding
from celery_poison.broker.envelope import envelope
from celery_poison.broker.port import Broker, Parcel

_CURE = "use Redis or RabbitMQ for all that celery_poison promises"


class VirtualBroker(Broker):
    """One of kombu's virtual transports: the base of kinds that know little more of it."""

    lacks = (
        "bodies are kept after unpacking, and a dead worker's messages come back when the broker returns"
        " them, or never: each delivery is looked up for that"
    )

    def examine(self, app: Celery, connection: Any) -> Iterator[Finding]:
        _ = connection.default_channel  # which connects
        name = self.title or connection.transport.driver_type
        yield Finding("broker", f"{name}: neither Redis nor RabbitMQ; {self.lacks}", _CURE)

    def depth(self, connection: Any, queue: str) -> int:
        if isinstance(connection.transport, virtual.Transport):
            return int(connection.default_channel._size(queue))
        with connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:
                return 0

    def publish(self, channel: Any, parcel: Parcel) -> None:
        channel._put(parcel.queue, envelope(channel, parcel))


class OtherBroker(VirtualBroker):
    """Any transport that has no kind of its own, kombu's or somebody else's.

    Args:
        driver_type: the transport's own; one that says "redis" is taken at its word.
    """

    def __init__(self, driver_type: str) -> None:
        self.title = driver_type
        self.forgets = self.counts = driver_type == "redis"


class MemoryBroker(VirtualBroker):
    """A broker in the memory of one process, as tests use it."""

    title = "memory"
    ends_with_process = True
