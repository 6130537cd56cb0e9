"""Makes room in a full queue, and in the quarantine; what goes is on record with its body first (MSG-5).

A queue is kept below its limit by who publishes to it, the quarantine by who brings a message there.
"""

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
from celery_poison.errors import OVERTAKEN, LedgerUnavailable
from celery_poison.extension import Extensions, within
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.ledger.scripts import Code
from celery_poison.plugin import plugin_of
from celery_poison.producer.handover import is_one_database
from celery_poison.producer.limits import Filling, limit_of
from celery_poison.quarantine.arguments import arguments
from celery_poison.quarantine.stored import identity_of, original, stored_fields
from celery_poison.settings import Settings
from celery_poison.states import Event

logger = get_logger("celery_poison")

#: Who discards, as the journal names it, and messages that quarantine gives up at once at most.
ACTOR, MOST = "poison_max_messages", 100
REASON = "the oldest in a full queue made room for a new one"
#: It may leave the queue: it is on record, by us, or by somebody who may have died just then.
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
        ledger, channel = self._plugin.outbox.ledger, connection.default_channel
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
                with suppress(ValueError, TypeError, KeyError):  # what nobody can read stays
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
                ledger.purge(mid, ACTOR, "a worker had received it already", number=0)
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
        """Put a message on record as given up; see ``Ledger.discard_old``."""
        identity, kept = identity_of(message), original(message)
        shown = arguments(self._app, self._plugin.settings.redact, identity.task, kept)
        return ledger.discard_old(
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


# --- the quarantine itself ---------------------------------------------------------------------------

#: What plain Celery would have dropped: of these alone it may be said that there is no room.
REFUSABLE = frozenset({causes.FAILURE}) | causes.UNPROCESSABLE


class Room:
    """How much room there is in one app's quarantine; everything here waits for Redis."""

    def __init__(self, settings: Settings, ledger: Ledger, extensions: Extensions) -> None:
        self._limit = limit_of(settings, settings.quarantine_queue)
        self._name = settings.quarantine_queue
        self._filling = Filling(lambda: ledger)
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._extensions = extensions

    def most(self, cause: str, most: int | None = None) -> int | None:
        """Return beyond how many messages one of this cause is not kept; None: it is kept in any case.

        Args:
            most: what is known of that already.
        """
        if self._limit is None or self._limit.discards_old or cause not in REFUSABLE:
            return most
        return self._limit.most if most is None else min(most, self._limit.most)

    def make(self) -> None:
        """Give up what has been in quarantine for longest, as far as there is too much; warn in time (MSG-7).

        It can be restored. What a person is deciding about stays, and what leaves by itself for a destination
        or its own queue.

        Raises:
            LedgerUnavailable: Redis is away; the next one makes room.
        """
        if self._limit is None:
            return
        there = self._queries.totals()["quarantined"]
        if self._limit.is_near(there):
            self._filling(self._name, there, self._limit.most)
        over = there - self._limit.most
        if over <= 0 or not self._limit.discards_old:
            return
        note = "the oldest in quarantine made room for a new one"
        for mid in self._queries.longest_kept(min(over, MOST)):
            record = self._queries.record(mid)
            if record is None or record.destination or record.retry_at:
                continue
            with suppress(*OVERTAKEN):
                number = self._ledger.decide(mid, "discard", ACTOR, note)
                about = self._ledger, record, self._queries.message, note
                with within(hook(*about) for hook in self._extensions.discarding):
                    self._ledger.give_up(mid, Event.DISCARDED, ACTOR, note, number)
                logger.warning("celery_poison: Task %s[%s] was discarded: %s", record.task, record.id, note)
