"""Makes room in a full queue (MSG-5): the oldest messages go, each on record with its body first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from celery_poison import causes
from celery_poison.basics.text import count_of
from celery_poison.broker.kinds import broker_of
from celery_poison.broker.port import WaitingMessage
from celery_poison.errors import OVERTAKEN, LedgerUnavailable
from celery_poison.keep.arguments import arguments
from celery_poison.keep.room import ACTOR
from celery_poison.keep.stored_message import identity_of, original, stored_fields
from celery_poison.ledger import Ledger
from celery_poison.ledger.scripts import Code
from celery_poison.plugin import plugin_of

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
        ledger = self._plugin.quick_ledger
        done = 0
        try:
            done = sum(self._discard_each(ledger, connection, queue, number))
        except LedgerUnavailable as error:
            logger.error("celery_poison: queue %s grows beyond its limit: %s", queue, error)
        if done:
            logger.warning(
                "celery_poison: %s of queue %s discarded, the oldest, since it is full",
                count_of(done, "message"),
                queue,
            )
        return done

    def _discard_each(self, ledger: Ledger, connection: Any, queue: str, number: int) -> Iterator[bool]:
        broker = broker_of(connection)
        if self._is_one_database is None:
            self._is_one_database = broker.is_database_of(connection.default_channel, ledger.client)
        for each in broker.oldest(connection, queue, number):
            with suppress(ValueError, TypeError, KeyError):  # a message that cannot be read stays
                if self._is_one_database and each.push:
                    yield self._record(ledger, each.message, queue, *each.push) is Code.OK
                # Else a copy of it runs: the worker that receives it knows what to do.
                elif (done := self._record(ledger, each.message, queue)) in _ON_RECORD:
                    yield self._remove(ledger, each, done)

    def _remove(self, ledger: Ledger, each: WaitingMessage, done: Code) -> bool:
        """Take a message from its queue; a record of ours is void if that is too late."""
        if each.remove():
            return True
        if done is Code.OK:
            with suppress(*OVERTAKEN):  # another publisher removed it
                mid = identity_of(each.message).mid
                ledger.decisions.purge(mid, ACTOR, "a worker had received it already", number=0)
        return False

    def _record(self, ledger: Ledger, message: Any, queue: str, list: str = "", payload: Any = "") -> Code:
        """Put a message on record as given up; see ``DecisionTransitions.discard_old``."""
        identity, kept = identity_of(message), original(message)
        shown = arguments(self._app, self._plugin.settings.redact, identity.task, kept)
        return ledger.decisions.discard_old(
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
