"""Which kind of broker a connection leads to. A new one is a folder that answers the port, and a row here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from celery import Celery
from kombu import Connection

from celery_poison.broker.bounds import bounded_options
from celery_poison.broker.port import Broker, PutBack

#: Module of kombu's in which a transport and its channels are defined -> the kind. A subclass is of its kind.
#: By name: who only publishes loads none of them.
_KINDS: Mapping[str, str] = {
    "kombu.transport.redis": "redis.kind:RedisBroker",
    "kombu.transport.pyamqp": "amqp.kind:AmqpBroker",
    "kombu.transport.SQS": "sqs.kind:SqsBroker",
    "kombu.transport.memory": "other:MemoryBroker",
}


def broker_of(place: Any) -> Broker:
    """Return the kind of broker behind a connection, a transport class, or a channel of kombu's."""
    if isinstance(place, Connection):
        place = place.get_transport_cls()
    return _kind_of(place if isinstance(place, type) else type(place))


@lru_cache(maxsize=256)
def _kind_of(place: type) -> Broker:
    for base in place.__mro__:
        if base.__module__ in _KINDS:
            return _load(_KINDS[base.__module__])
    from celery_poison.broker.other import OtherBroker  # likewise

    return OtherBroker(str(getattr(place, "driver_type", "")))


@cache
def _load(path: str) -> Broker:
    room, _, name = path.partition(":")
    kind: Broker = getattr(import_module(f"{__package__}.{room}"), name)()
    return kind


def depth(connection: Any, queue: str) -> int:
    """Return how many messages wait in a queue; 0 where there is none."""
    return broker_of(connection).depth(connection, queue)


def owners(app: Celery) -> set[str]:
    """Return the boot ids under which messages lie unacknowledged, where the broker leaves them to us.

    Raises:
        Exception: the broker is away; each transport has errors of its own.
    """
    with app.connection_for_read(transport_options=bounded_options(app)) as connection:
        _ = connection.default_channel  # which connects
        return broker_of(connection).owners(connection)


def put_back(app: Celery, boot_id: str, queues: Iterable[str]) -> PutBack:
    """Put back every message that the worker process ``boot_id`` received, where the broker does not (EMS-6).

    Each message moves in one step, to the front of the queue it came from, the oldest first in line. Its
    redelivered flag is set, so that it is looked up before it runs. Whoever is killed in between is
    followed by the next call, which moves the rest and says the same; two calls at once share the work.

    Args:
        queues: the queues that worker consumed, as far as they are known.

    Raises:
        Exception: the broker is away, or takes no messages at the moment; call again.
    """
    with app.connection_for_read(transport_options=bounded_options(app)) as connection:
        _ = connection.default_channel
        return broker_of(connection).put_back(connection, boot_id, queues)
