"""What ``doctor`` asks the broker: may this user write to each named exception destination (WAS-4)?

Nothing is published, declared or pushed: a broker looks at rights before anything else, so each question is
one that it must refuse for another reason, or forgets, once the rights are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Any

import amqp.exceptions
import redis
from kombu.transport import pyamqp
from kombu.transport import redis as kombu_redis

from celery_poison.basics.parts import Finding
from celery_poison.basics.text import some_of
from celery_poison.broker.publish import ANSWER_TIMEOUT, bounded_connection
from celery_poison.cli.redis_checks import queued_and_dropped
from celery_poison.plugin import Plugin
from celery_poison.rules.destinations import named_in

#: RabbitMQ's name, in permissions, of the exchange that leads to each queue by its name.
_DEFAULT_EXCHANGE = "amq.default"
#: With these no queue can be declared; should a broker do it all the same, it is gone at once.
_IMPOSSIBLE = {"x-expires": 0}
_UNTIL_THEN = "what goes there stays in quarantine until then"
_MULTI = "allow MULTI to this user, so that the right to write can be checked"


def destinations(plugin: Plugin) -> Iterator[Finding]:
    """Yield one finding for each queue that some setting, task or queue names as its destination."""
    named = _named(plugin)
    if not named:
        return
    with suppress(Exception), bounded_connection(plugin.app) as connection:  # broken is a finding already
        channel = connection.default_channel
        if isinstance(channel, kombu_redis.Channel):
            for queue, sources in named.items():
                yield _on_redis(channel, queue, f"queue {queue} ({some_of(sources)})")
        elif isinstance(channel, pyamqp.Channel):
            refused = _refused(connection, _publish_unroutable)
            for queue, sources in named.items():
                yield _on_rabbitmq(plugin, connection, queue, f"queue {queue} ({some_of(sources)})", refused)


def _named(plugin: Plugin) -> Mapping[str, list[str]]:
    """Return the destinations that are queues, each with what names it."""
    settings, queues = plugin.settings, defaultdict[str, list[str]](list)
    everywhere = named_in(settings.exception_destination)
    for queue in everywhere:
        queues[queue].append("poison_exception_destination")
    for queue, options in (settings.queues or {}).items():
        for name in named_in(options.get("exception_destination")):
            queues[name].append(f"poison_queues[{queue!r}]")
    with suppress(Exception):  # whatever the user's modules raise: a finding already
        for task, (policy, _) in sorted(plugin.policies.items()):
            for each in (policy, *policy.by_queue.values()):
                for name in named_in(each.exception_destination) - everywhere:
                    if f"task {task}" not in queues[name]:
                        queues[name].append(f"task {task}")
    return dict(sorted(queues.items()))


# --- Redis ---------------------------------------------------------------------------------------


def _on_redis(channel: Any, queue: str, said: str) -> Finding:
    key = f"{channel.global_keyprefix or ''}{queue}"
    with channel.conn_or_acquire() as client:
        try:
            error = queued_and_dropped(client, "LPUSH", key, "")
        except redis.ResponseError as unable:
            return Finding(
                "destination", f"{said}: whether it may be written to is not known: {unable}", _MULTI
            )
    if error is None:
        return Finding("destination", f"{said} may be written to")
    cure = "look into Redis' log"
    if isinstance(error, redis.exceptions.NoPermissionError):
        cure = f"ACL SETUSER <user> +lpush ~{key}: {_UNTIL_THEN}"
    return Finding("destination", f"{said} may not be written to: {error}", cure, broken=True)


# --- RabbitMQ --------------------------------------------------------------------------------------


def _on_rabbitmq(
    plugin: Plugin, connection: Any, queue: str, said: str, refused: amqp.exceptions.AMQPError | None
) -> Finding:
    if isinstance(refused, amqp.exceptions.AccessRefused):
        return _broken(f"{said} may not be written to: {refused.reply_text}", "write", _DEFAULT_EXCHANGE)
    missing = _refused(connection, lambda channel: channel.queue_declare(queue, passive=True))
    if missing is None:
        return Finding("destination", f"{said} may be written to")
    if not isinstance(missing, amqp.exceptions.NotFound):
        cure = "name another queue, or end the program that keeps it for itself"
        return Finding("destination", f"{said} cannot be used: {missing}", cure, broken=True)
    for right, ask in _making(plugin, queue).items():
        error = _refused(connection, ask)
        if isinstance(error, amqp.exceptions.AccessRefused):
            reason = f"{said} does not exist, and may not be made: {error.reply_text}"
            return _broken(reason, right, queue, "declare it yourself, or ")
    return Finding("destination", f"{said} does not exist yet: its first message makes it")


def _making(plugin: Plugin, queue: str) -> Mapping[str, Callable[[Any], object]]:
    """Return what a queue is made with: the rights, and a question that is refused without them."""
    queues = plugin.app.amqp.queues
    wanted = queues.get(queue) or plugin.app.amqp.Queues(None, create_missing=True)[queue]
    exchange, key = wanted.exchange.name, wanted.routing_key
    asked: dict[str, Callable[[Any], object]] = {
        "configure": lambda channel: channel.queue_declare(queue, arguments=_IMPOSSIBLE)
    }
    if exchange:  # the queue is not there, so that nothing can be bound
        asked["write, and read,"] = lambda channel: channel.queue_bind(queue, exchange, key)
    return asked


def _broken(said: str, right: str, name: str, instead: str = "") -> Finding:
    cure = f"{instead}let the user's {right} pattern match {name} (rabbitmqctl set_permissions)"
    return Finding("destination", said, f"{cure}: {_UNTIL_THEN}", broken=True)


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
