"""What ``celery poison doctor`` says of RabbitMQ, by its version, by the app's settings and by its rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from secrets import token_hex
from typing import Any

import amqp.exceptions
from celery import Celery
from kombu import Connection

from celery_poison.basics.parts import Finding
from celery_poison.basics.text import some_of
from celery_poison.broker.amqp.versions import filled_by_delays
from celery_poison.broker.bounds import ANSWER_TIMEOUT
from celery_poison.portrait import LET_IT_DELAY

#: RabbitMQ's name, in permissions, of the exchange that leads to each queue by its name.
_DEFAULT_EXCHANGE = "amq.default"
#: With these no queue can be declared; should a broker do it all the same, it is gone at once.
_IMPOSSIBLE = {"x-expires": 0}


def examine(app: Celery, connection: Connection) -> Iterator[Finding]:
    """Yield the findings about a RabbitMQ that answers."""
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


def writing(app: Celery, connection: Any, queues: Mapping[str, str]) -> Iterator[Finding]:
    """Yield for each queue whether this user may publish to it, or make it."""
    refused = _refused(connection, _publish_unroutable)
    for queue, words in queues.items():
        yield _writing(app, connection, queue, words, refused)


def _writing(
    app: Celery, connection: Any, queue: str, words: str, refused: amqp.exceptions.AMQPError | None
) -> Finding:
    if isinstance(refused, amqp.exceptions.AccessRefused):
        return _broken(f"{words} may not be written to: {refused.reply_text}", "write", _DEFAULT_EXCHANGE)
    missing = _refused(connection, lambda channel: channel.queue_declare(queue, passive=True))
    if missing is None:
        return Finding("destination", f"{words} may be written to")
    if not isinstance(missing, amqp.exceptions.NotFound):
        cure = "name another queue, or end the program that keeps it for itself"
        return Finding("destination", f"{words} cannot be used: {missing}", cure, broken=True)
    for right, ask in _making(app, queue).items():
        error = _refused(connection, ask)
        if isinstance(error, amqp.exceptions.AccessRefused):
            reason = f"{words} does not exist, and may not be made: {error.reply_text}"
            return _broken(reason, right, queue, "declare it yourself, or ")
    return Finding("destination", f"{words} does not exist yet: its first message makes it")


def _making(app: Celery, queue: str) -> Mapping[str, Callable[[Any], object]]:
    """Return the rights that making a queue takes, each with a request that is refused without it."""
    queues = app.amqp.queues
    wanted = queues.get(queue) or app.amqp.Queues(None, create_missing=True)[queue]
    exchange, key = wanted.exchange.name, wanted.routing_key
    asked: dict[str, Callable[[Any], object]] = {
        "configure": lambda channel: channel.queue_declare(queue, arguments=_IMPOSSIBLE)
    }
    if exchange:  # the queue is not there, so that nothing can be bound
        asked["write, and read,"] = lambda channel: channel.queue_bind(queue, exchange, key)
    return asked


def _broken(words: str, right: str, name: str, instead: str = "") -> Finding:
    cure = f"{instead}let the user's {right} pattern match {name} (rabbitmqctl set_permissions)"
    return Finding(
        "destination", words, f"{cure}: what goes there stays in quarantine until then", broken=True
    )


def _publish_unroutable(channel: Any) -> None:
    """Publish to a queue that does not exist: the broker returns the message, and keeps nothing."""
    message = channel.prepare_message(b"")
    words: dict[str, Any] = {"exchange": "", "routing_key": f"poison.doctor.{token_hex(8)}"}
    channel.basic_publish(message, **words, mandatory=True, confirm_timeout=ANSWER_TIMEOUT)


def _refused(connection: Any, ask: Callable[[Any], object]) -> amqp.exceptions.AMQPError | None:
    """Return why RabbitMQ refuses something; it closes the channel for it."""
    with connection.channel() as channel:
        try:
            ask(channel)
        except amqp.exceptions.ChannelError as error:
            return error
    return None
