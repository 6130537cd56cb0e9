"""Puts messages into quarantine as a worker does, without a worker."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.message import Message

from celery_poison.broker.identity import identity_of
from celery_poison.broker.kinds import depth
from celery_poison.broker.transport import guarded_connection
from celery_poison.headers import mid_of
from celery_poison.keep.arguments import arguments, fingerprint_of
from celery_poison.keep.stored_message import original, stored_fields
from celery_poison.ledger import signature
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.rules.destinations import SYSTEM_ROUTE, Route
from celery_poison.testing.servers import wait_until
from tests import PATIENCE

SECRET = b"secret"


class Keeper:
    """One app's broker and ledger, seen from where a worker stands."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.ledger = plugin_of(app).open_ledger()
        self._connection = guarded_connection(lambda: "b00t")(app.conf.broker_write_url)
        self._tokens = 0

    def close(self) -> None:
        self._connection.release()

    def sign(self) -> None:
        """Sign the ledger, as the first worker does."""
        signature.enroll(self.ledger.client, self.ledger.keys, **identity_of(self.app))

    def receive(self, queue: str = "celery") -> Any:
        """Take the next message of a queue, sealed, with its body as it was sent."""
        channel = self._connection.default_channel
        # RabbitMQ confirms nothing to Celery's producers: what was just sent may still be on its way.
        message = wait_until(partial(channel.basic_get, queue), what=f"a message in {queue}")
        if not isinstance(message, Message):  # RabbitMQ's transport leaves that to its consumers
            message = channel.message_to_python(message)
        message.queue_name = queue
        return message

    def keep(
        self,
        message: Any,
        cause: str = "signal:9",
        crashes: int = 2,
        goes: Route = SYSTEM_ROUTE,
        reason: str = "",
        **more: str | int,
    ) -> str:
        """Store a message in quarantine, acknowledge it, and return its mid."""
        task, mid = message.headers["task"], mid_of(message.headers)
        start = self._start(message, task)
        for _ in range(crashes):
            self.ledger.messages.crash(mid, start, cause=cause, shared=False)
            start = self._start(message, task)
        shown = arguments(self.app, plugin_of(self.app).settings.redact, task, original(message))
        fields = stored_fields(message, fingerprint_of(message, task, SECRET), shown) | more
        self.ledger.quarantine.store(mid, start, cause=cause, reason=reason, fields=fields, route=goes)
        message.ack()
        return mid

    def send_and_keep(
        self, task: str, *args: Any, cause: str = "signal:9", goes: Route = SYSTEM_ROUTE, **options: Any
    ) -> str:
        self.app.tasks[task].apply_async(args, **options)
        return self.keep(self.receive(options.get("queue", "celery")), cause, goes=goes)

    def empty(self, queue: str = "celery") -> None:
        """Throw away what waits in a queue on Redis."""
        with Connection(self.app.conf.broker_write_url) as connection:
            connection.default_channel.queue_purge(queue)

    def _start(self, message: Any, task: str) -> Start:
        self._tokens += 1
        size = len(message.received)
        token, queue = f"b00t.{self._tokens}", message.queue_name
        return Start(
            "R", token, "w1@test/b00t", 7, 1, 1, 0, message.headers["id"], task, queue, 2, 5, size, 1
        )

    # --- what lies in the broker, looked at without taking it ----------------------------------

    def raw_on_redis(self, queue: str = "celery") -> list[dict[str, Any]]:
        """Return every message that waits in a queue on Redis, oldest first, of all priorities."""
        with Connection(self.app.conf.broker_write_url) as connection:
            channel = connection.default_channel
            keys = [channel._q_for_pri(queue, priority) for priority in channel.priority_steps]
            found = [raw for key in keys for raw in reversed(channel.client.lrange(key, 0, -1))]
        return [json.loads(raw) for raw in found]

    def take_from_rabbit(self, queue: str = "celery") -> Any:
        """Return the next message of a queue on RabbitMQ as py-amqp gives it, and leave it there."""
        with Connection(self.app.conf.broker_write_url) as connection:
            get = partial(connection.default_channel.basic_get, queue)
            raw = wait_until(get, what=f"a message in {queue}")
            connection.default_channel.basic_reject(raw.delivery_tag, requeue=True)
        return raw

    def all_on_rabbit(self, least: int, queue: str = "celery") -> list[tuple[dict[str, Any], Any]]:
        """Return (headers, the rest) of each message that waits in a queue on RabbitMQ; they are back there.

        Args:
            least: so many are waited for.
        """
        found: list[Any] = []
        with Connection(self.app.conf.broker_write_url) as connection:
            wait_until(lambda: depth(connection, queue) >= least, what=f"{least} messages in {queue}")
            number = depth(connection, queue)
            with connection.channel() as channel:
                if number:
                    channel.basic_consume(queue, callback=found.append)
                while len(found) < number:
                    connection.drain_events(timeout=PATIENCE)
            wait_until(lambda: depth(connection, queue) >= number, what=f"all of {queue} is back")
        rows = ((message.properties.copy(), message.body) for message in found)
        return [(properties.pop("application_headers"), (properties, body)) for properties, body in rows]
