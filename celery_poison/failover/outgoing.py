"""Moves on what leaves quarantine by itself: to a named destination, or back to its own queue (WAS-4, WAS-5).

Until the broker has confirmed a message, it is in quarantine; each step can be repeated. A monitor that dies
between publishing a message and noting it is followed by another, which publishes it again under a higher
number: workers drop the lower one. A destination that refuses holds up nobody: its messages stay in
quarantine and are tried again (WAS-8, MSG-4).
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.broker.publish import NoSuchQueue, NotPublished, Publisher
from celery_poison.destinations import ACTOR, verdict_header
from celery_poison.errors import OVERTAKEN, DecisionPending, LedgerUnavailable, MessageNotFound
from celery_poison.forking import no_fork
from celery_poison.headers import VERDICT
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.model import MessageRecord
from celery_poison.quarantine.body import BodyBroken, BodyRefused
from celery_poison.quarantine.results import canvas_in
from celery_poison.quarantine.stored import PublishRefused, as_released, publish_release, sent_to

logger = get_logger("celery_poison")

#: Messages that are moved in one round.
BATCH = 100
#: Seconds before a destination that refused is tried again.
PAUSE = 5.0


class Outgoing:
    """What leaves the quarantine of one ledger, on one app's broker."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._queries = Queries(ledger)
        #: Queue -> until when it is not asked again.
        self._refused: dict[str, float] = {}
        self._complained: set[str] = set()
        self._thread: threading.Thread | None = None

    def soon(self) -> None:
        """Do a round in a thread of its own, if anything is due: a broker that does not answer stops nobody.

        Raises:
            LedgerUnavailable: Redis is away; nothing is lost.
        """
        working = self._thread is not None and self._thread.is_alive()
        if not working and self._queries.outgoing(1):
            self._thread = threading.Thread(target=self._work, name="poison-outgoing", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            with no_fork():
                self.round()
        except LedgerUnavailable as error:
            logger.debug("celery_poison: nothing leaves quarantine at the moment: %s", error)
        except Exception:
            logger.exception("celery_poison: what is to leave quarantine stays there; it is tried again")

    def round(self) -> int:
        """Move what is due; return how many messages have left.

        Raises:
            LedgerUnavailable: Redis is away; nothing is lost.
        """
        moved, mids = 0, self._queries.outgoing(BATCH)
        if not mids:
            return 0
        with Publisher(self._app) as publisher:
            for mid, record in zip(mids, self._queries.records(mids), strict=True):
                moved += self._move(publisher, mid, record)
        return moved

    def _move(self, publisher: Publisher, mid: str, record: MessageRecord | None) -> bool:
        queue = record.destination or record.queue if record else ""
        if self._refused.get(queue, 0.0) > time.monotonic():
            self._ledger.postpone(mid, PAUSE)  # out of the way of those that can go
            return False
        try:
            number = self._ledger.decide(mid, *_decision(record))
            try:
                if record is None:  # it came back to quarantine a moment ago
                    raise MessageNotFound(mid)
                self._publish(publisher, record, number)
            except BaseException:
                self._ledger.undecide(mid, number)
                raise
        except DecisionPending:
            self._ledger.postpone(mid, PAUSE)
        except OVERTAKEN:
            pass
        except PublishRefused as error:
            self._refused[queue] = time.monotonic() + PAUSE
            self._ledger.postpone(mid, PAUSE)
            self._complain(error)
        else:
            return True
        return False

    def _publish(self, publisher: Publisher, record: MessageRecord, number: int) -> None:
        raw = self._queries.message(record.mid)
        if "body" not in raw:
            raise MessageNotFound(record.mid)
        stored = as_released(raw, record)
        if not record.destination:
            publish_release(publisher, stored, record.queue, number)
            _, actor, note = _decision(record)
            self._ledger.released(record.mid, record.id, number, actor, note)
            return
        copy, told = sent_to(stored, record.destination), {VERDICT: verdict_header(record)}
        try:
            publish_release(publisher, copy, record.destination, number, told)
        except PublishRefused as error:
            if not isinstance(error.__cause__, NoSuchQueue):
                raise
            with suppress(NotPublished):
                publisher.declare(record.destination)
            publish_release(publisher, copy, record.destination, number, told)
        canvas = ""
        if "canvas" not in raw:
            with suppress(BodyBroken, BodyRefused, ValueError, TypeError, AttributeError):
                canvas = json.dumps(canvas_in(stored))
        self._ledger.sent(record.mid, number, ACTOR, canvas)

    def _complain(self, error: PublishRefused) -> None:
        """Say once that a message stays in quarantine."""
        if str(error) not in self._complained:
            self._complained.add(str(error))
            logger.warning(
                "celery_poison: a message cannot leave quarantine yet, and is tried again: %s", error
            )


def _decision(record: MessageRecord | None) -> tuple[str, str, str]:
    """Return why a message leaves: verb, actor and note of the decision."""
    if record is not None and record.destination:
        return "send", ACTOR, ""
    if record is not None and record.releases_left:
        return "again", record.actor, record.note
    return "retry", ACTOR, "after poison_blocked_retry_timeout"
