"""Makes room in a full queue (MSG-5): the oldest messages go, each on record with its body first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from kombu.transport import redis as kombu_redis

from celery_poison import causes
from celery_poison.basics.text import count_of
from celery_poison.broker.publish import is_one_database
from celery_poison.errors import OVERTAKEN, LedgerUnavailable
from celery_poison.ledger import Ledger
from celery_poison.ledger.scripts import Code
from celery_poison.plugin import plugin_of
from celery_poison.quarantine.arguments import arguments
from celery_poison.quarantine.room import ACTOR
from celery_poison.quarantine.stored_message import identity_of, original, stored_fields
from celery_poison.quarantine.transitions import decisions_of

logger = get_logger("celery_poison")

REASON = "the oldest in a full queue made room for a new one"
#: It may leave the queue: this process has put it on record, or another that may have died just then.
_ON_RECORD = (Code.OK, Code.DONE)


class Discarder:
    """Makes room in the queues of one app, in one process that publishes."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._plugin = plugin_of(app)
        self._is_one_database: bool | None = None

    def __call__(self, connection: Any, queue: str, number: int) -> int:
        """Give up so many of the oldest messages of a queue; return how many it were.

        Fewer where workers were faster, or the ledger is away: nothing goes that is not on record.
        """
        ledger, channel = self._plugin.quick_ledger, connection.default_channel
        done = 0
        try:
            if isinstance(channel, kombu_redis.Channel):
                done = sum(self._from_redis(ledger, channel, queue, number))
            elif connection.transport.driver_type == "amqp":
                done = sum(self._from_rabbitmq(ledger, connection, queue, number))
        except LedgerUnavailable as error:
            logger.error("celery_poison: queue %s grows beyond its limit: %s", queue, error)
        if done:
            logger.warning(
                "celery_poison: %s of queue %s discarded, the oldest, since it is full",
                count_of(done, "message"),
                queue,
            )
        return done

    def _from_redis(
        self, ledger: Ledger, channel: kombu_redis.Channel, queue: str, number: int
    ) -> Iterator[bool]:
        if self._is_one_database is None:
            self._is_one_database = is_one_database(channel, ledger.client)
        prefix, client = channel.global_keyprefix or "", channel.client
        for priority in reversed(channel.priority_steps):  # the least urgent first
            key = channel._q_for_pri(queue, priority)
            oldest = client.lrange(key, -number, -1)
            number -= len(oldest)
            for raw in reversed(oldest):
                with suppress(ValueError, TypeError, KeyError):  # a message that cannot be read stays
                    message = channel.Message(json.loads(raw), channel=channel)
                    if self._is_one_database:
                        yield self._record(ledger, message, queue, prefix + key, raw) is Code.OK
                    elif (done := self._record(ledger, message, queue)) in _ON_RECORD:
                        mine = identity_of(message).mid if done is Code.OK else ""
                        yield self._removed(ledger, client, key, raw, mine)
            if number <= 0:
                return

    def _removed(self, ledger: Ledger, client: Any, key: str, raw: Any, mid: str) -> bool:
        """Take a message from its queue; the record with ``mid`` is ours, and void if that is too late."""
        if client.lrem(key, -1, raw):
            return True
        if mid:
            with suppress(*OVERTAKEN):  # another publisher removed it
                decisions_of(ledger).purge(mid, ACTOR, "a worker had received it already", number=0)
        return False

    def _from_rabbitmq(self, ledger: Ledger, connection: Any, queue: str, number: int) -> Iterator[bool]:
        with connection.channel() as channel:  # what is not acknowledged goes back when it is closed
            for _ in range(number):
                raw = channel.basic_get(queue)
                if raw is None:
                    return
                if self._record(ledger, channel.message_to_python(raw), queue) not in _ON_RECORD:
                    return  # a copy of it runs, or is on record: the worker that receives it knows what to do
                channel.basic_ack(raw.delivery_tag)
                yield True

    def _record(self, ledger: Ledger, message: Any, queue: str, list: str = "", payload: Any = "") -> Code:
        """Put a message on record as given up; see ``DecisionTransitions.discard_old``."""
        identity, kept = identity_of(message), original(message)
        shown = arguments(self._app, self._plugin.settings.redact, identity.task, kept)
        return decisions_of(ledger).discard_old(
            identity.mid,
            id=identity.id,
            task=identity.task,
            queue=queue,
            cause=causes.QUEUE_FULL,
            reason=REASON,
            actor=ACTOR,
            size=len(kept.body),
            list=list,
            payload=payload,
            fields=stored_fields(message, arguments=shown),
        )
