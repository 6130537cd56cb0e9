"""Messages leave quarantine for a named destination, or for their own queue after a pause (WAS-4, WAS-5).

Every step can be repeated. A monitor that dies between publishing a message and noting it is followed by
another, which publishes it again under a higher number: the second copy is dropped by its number.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

from celery import Celery

from celery_poison.basics.forking import no_fork
from celery_poison.broker.port import NoSuchQueue, NotPublished
from celery_poison.broker.publish import Publisher
from celery_poison.errors import OVERTAKEN, DecisionPending, Fenced, LedgerUnavailable, MessageNotFound
from celery_poison.fleet.refusals import REFUSED_FOR, Refusals
from celery_poison.headers import VERDICT
from celery_poison.keep.body import BodyBroken, BodyRefused
from celery_poison.keep.canvas import canvas_in
from celery_poison.keep.stored_message import (
    PublishRefused,
    able_to_run,
    as_released,
    publish_release,
    sent_to,
)
from celery_poison.ledger import Ledger
from celery_poison.model import MessageRecord
from celery_poison.rules.destinations import ACTOR, verdict_header

#: Messages that are moved out of quarantine in one round.
MOVED_AT_ONCE = 100


class Departures:
    """Moves on what goes to a named destination, or back to its own queue (WAS-4, WAS-5).

    Until the broker has confirmed a message, it is in quarantine. A destination that refuses holds up no
    other: its messages stay in quarantine and are tried again (WAS-8, MSG-4).
    """

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._queries = ledger.read
        self._refusals = Refusals("a message cannot leave quarantine yet, and is tried again")

    def round(self) -> int:
        """Move what is due; return how many messages have left.

        Raises:
            LedgerUnavailable: Redis is away; nothing is lost.
        """
        with no_fork():
            mids = self._queries.outgoing(MOVED_AT_ONCE)
            if not mids:
                return 0
            with Publisher(self._app) as publisher:
                records = zip(mids, self._queries.records(mids), strict=True)
                return sum(self._move(publisher, mid, record) for mid, record in records)

    def _move(self, publisher: Publisher, mid: str, record: MessageRecord | None) -> bool:
        queue = record.destination or record.queue if record else ""
        if queue in self._refusals:
            self._ledger.decisions.postpone(mid, REFUSED_FOR)  # out of the way of those that can go
            return False
        try:
            with self._ledger.decisions.reserving(mid, *_decision(record)) as number:
                if record is None:  # it came back to quarantine a moment ago
                    raise MessageNotFound(mid)
                self._publish(publisher, record, number)
        except DecisionPending:
            self._ledger.decisions.postpone(mid, REFUSED_FOR)
        except OVERTAKEN:
            pass
        except (LedgerUnavailable, Fenced):
            raise
        except Exception as error:  # the queue's, or its own
            self._refusals.note(queue if isinstance(error, PublishRefused) else mid, error)
            self._ledger.decisions.postpone(mid, REFUSED_FOR)
        else:
            return True
        return False

    def _publish(self, publisher: Publisher, record: MessageRecord, number: int) -> None:
        raw = self._queries.message(record.mid)
        if "body" not in raw:
            raise MessageNotFound(record.mid)
        stored = as_released(raw, record)
        if not record.destination:
            publish_release(publisher, able_to_run(stored), record.queue, number)
            _, actor, note = _decision(record)
            self._ledger.decisions.complete_release(record.mid, record.id, number, actor, note)
            return
        copy = sent_to(stored, record.destination)
        copy = replace(copy, headers={**copy.headers, VERDICT: verdict_header(record)})
        try:
            publish_release(publisher, copy, record.destination, number)
        except PublishRefused as error:
            if not isinstance(error.__cause__, NoSuchQueue):
                raise
            with suppress(NotPublished):
                publisher.declare(record.destination)
            publish_release(publisher, copy, record.destination, number)
        canvas = ""
        if "canvas" not in raw:
            with suppress(BodyBroken, BodyRefused, ValueError, TypeError, AttributeError):
                canvas = json.dumps(canvas_in(stored))
        self._ledger.decisions.complete_send(record.mid, number, ACTOR, canvas)


def _decision(record: MessageRecord | None) -> tuple[str, str, str]:
    """Return why a message leaves: verb, actor and note of the decision."""
    if record is not None and record.destination:
        return "send", ACTOR, ""
    if record is not None and record.releases_left:
        return "again", record.actor, record.note
    return "retry", ACTOR, "after poison_blocked_retry_timeout"
