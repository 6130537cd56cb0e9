"""Looks after parked messages: those whose earlier start came to grief are published again (TP1-8), and those
for whose idempotency key no start runs any more (NEW-12).

Every step can be repeated. A monitor that dies between publishing a message and noting it is followed by
another, which publishes it again under the same number: whichever copy is second waits, is parked again
or is told by the number that the message is over.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from celery_poison.broker.publish import NoSuchQueue, NotPublished, Publisher
from celery_poison.headers import PARK, TRIAL
from celery_poison.ledger import Ledger
from celery_poison.ledger.pauses import Paused, Scope
from celery_poison.ledger.queries import Queries
from celery_poison.model import Ended, Parked, ParkingState
from celery_poison.quarantine.stored import stored_message, unpack
from celery_poison.settings import Settings

logger = get_logger("celery_poison")

#: Seconds for which a finished start is left to the worker that ran it, which forgets it by itself.
COURTESY = 4.0
#: Milliseconds for which the end of a parking is remembered, for copies that come late.
REMEMBER_MS = 24 * 3600 * 1000
#: Seconds between two looks for parkings that may be forgotten: there may be very many, of a whole day.
FORGETTING_PAUSE = 60.0


class Parking:
    """The parked messages of one ledger, on one app's broker."""

    def __init__(self, app: Celery, ledger: Ledger, settings: Settings) -> None:
        self._app = app
        self._ledger = ledger
        self._queries = Queries(ledger)
        self._paused = Paused(ledger)
        self._activation_ms = int(settings.activation_interval * 1000)
        self._trial_queue = settings.trial_queue if settings.trial == "queue" else ""
        #: Tokens that parked messages waited for and that have finished, and since when that is known here.
        self._finished: dict[str, float] = {}
        self._complained: set[str] = set()
        self._next_forgetting = 0.0

    def round(self) -> int:
        """Look at every parked message once; return how many were published again.

        Those whose task is paused stay.

        Raises:
            LedgerUnavailable: Redis is away; nothing is lost.
        """
        before, self._finished = self._finished, {}
        waiting = dict(self._queries.parked_now())
        if waiting:
            self._paused.refresh()
            waiting = {
                mid: parked
                for mid, parked in waiting.items()
                if not self._paused(Scope.TASK, parked.start.task)
            }
        # Most of them wait for what runs: that much is known of many at once.
        waiting_still = self._queries.under_way(waiting)
        if awaited := self._queries.awaited_by(mid for mid in waiting if mid not in waiting_still):
            waiting_still |= self._ledger.still_awaited(awaited)
        due = [
            (mid, parked)
            for mid, parked in waiting.items()
            if mid not in waiting_still and self._is_due(mid, parked, before)
        ]
        published = self._publish(due) if due else 0
        if time.monotonic() >= self._next_forgetting:
            self._next_forgetting = time.monotonic() + FORGETTING_PAUSE
            self._forget()
        return published

    def _forget(self) -> None:
        """Forget the ends of parkings that no copy will ask for any more."""
        horizon = self._queries.now_ms() - REMEMBER_MS
        for mid, parked, raw in self._queries.parked():
            if parked.state in (ParkingState.FINISHED, ParkingState.KEPT) and parked.number < horizon:
                self._ledger.forget(mid, raw)

    def _is_due(self, mid: str, parked: Parked, finished: dict[str, float]) -> bool:
        """Whether no start of it is left: those that finish take its parking along."""
        recorded = self._ledger.look(mid, parked.start.id, self._activation_ms)
        if recorded.start is not None and recorded.ended is Ended.DONE:
            token, now = recorded.start.token, time.monotonic()
            since = self._finished[token] = finished.get(token, now)
            if now - since > COURTESY:  # its acknowledgement was lost with its connection
                self._ledger.clean_up([(mid, token)])
            return False
        return not recorded.is_in_the_way

    def _publish(self, due: list[tuple[str, Parked]]) -> int:
        published = 0
        with Publisher(self._app) as publisher:
            for mid, parked in due:
                try:
                    published += self._publish_one(publisher, mid, parked)
                except NoSuchQueue as error:
                    self._complain(error)
                except NotPublished as error:
                    self._complain(error)
                    break
        return published

    def _publish_one(self, publisher: Publisher, mid: str, parked: Parked) -> bool:
        packed = self._queries.parcel(mid)
        if packed is None:
            return False  # it is over, since a moment ago
        original = stored_message(unpack(packed))
        queue, trial = self._address(parked)
        foreign = {name: value for name, value in original.headers.items() if name != TRIAL}
        publisher.publish(original, queue, {**foreign, **trial, PARK: parked.number})
        return self._ledger.unpark(mid, parked.number)

    def _address(self, parked: Parked) -> tuple[str, dict[str, Any]]:
        """Return the queue that it goes to, and what it is told for the way."""
        home = parked.start.queue
        if parked.start.alone and self._trial_queue:
            return self._trial_queue, {TRIAL: home}
        return home, {}

    def _complain(self, error: NotPublished) -> None:
        """Say once that a message stays parked; every round tries again."""
        if str(error) not in self._complained:
            self._complained.add(str(error))
            logger.warning("celery_poison: a parked message cannot be published again yet: %s", error)
