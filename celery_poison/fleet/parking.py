"""Parked messages leave the ledger when they may run.

Every step can be repeated. A monitor that dies between publishing a message and noting it is followed by
another, which publishes it again under the same number: the second copy waits, or is parked again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from celery import Celery

from celery_poison.basics.calling import gather
from celery_poison.basics.forking import no_fork
from celery_poison.broker.port import NotPublished, Refused
from celery_poison.broker.publish import Publisher
from celery_poison.errors import Fenced, LedgerUnavailable
from celery_poison.fleet.refusals import Refusals
from celery_poison.fleet.turns import whose_turn
from celery_poison.headers import PARK, TRIAL
from celery_poison.keep.stored_message import unpack
from celery_poison.ledger import Ledger
from celery_poison.model import Ended, Parked, ParkingState
from celery_poison.plugin import plugin_of
from celery_poison.settings import Settings

#: Seconds for which a finished start is left to the worker that ran it, which forgets it by itself.
COURTESY = 4.0
#: Milliseconds for which the end of a parking is remembered, for copies that come late; and one that was
#: published: nobody told its end where its worker died while Redis was away.
REMEMBER_MS = 24 * 3600 * 1000
REMEMBER_PUBLISHED_MS = 7 * REMEMBER_MS


class Parking:
    """Publishes parked messages again.

    Those whose earlier start came to grief (TP1-8), whose key is free (NEW-12), or which are due (NEW-30).
    """

    def __init__(self, app: Celery, ledger: Ledger, settings: Settings) -> None:
        self._app = app
        self._ledger = ledger
        self._queries = ledger.read
        self._activation_ms = int(settings.activation_interval * 1000)
        self._trial_queue = settings.trial_queue if settings.trial == "queue" else ""
        #: Tokens that parked messages waited for and that have finished, and since when that is known here.
        self._finished: dict[str, float] = {}
        self._refusals = Refusals("a parked message cannot be published again yet")

    def round(self) -> int:
        """Look at every parked message once; return how many were published again.

        Those whose task is paused stay. A queue that refuses holds up no other (MSG-4).

        Raises:
            LedgerUnavailable: Redis is away; nothing is lost.
        """
        with no_fork():
            return self._publish_due()

    def forget_the_old(self) -> None:
        """Forget ends of parkings; there may be very many, of a whole day.

        Raises:
            LedgerUnavailable: Redis is away.
        """
        with no_fork():
            now_ms = self._queries.now_ms()
            ended = dict.fromkeys((ParkingState.FINISHED, ParkingState.KEPT), now_ms - REMEMBER_MS)
            horizons = {**ended, ParkingState.PUBLISHED: now_ms - REMEMBER_PUBLISHED_MS}
            for mid, parked, raw in self._queries.parked():
                # No copy will ask for it any more.
                if parked.number < horizons.get(parked.state, 0):
                    self._ledger.parking.forget(mid, raw)

    def _publish_due(self) -> int:
        before, self._finished = self._finished, {}
        waiting = dict(self._queries.parked_now())
        plugin = plugin_of(self._app)
        for stays in [hook(self._ledger) for hook in plugin.extensions.keeps_waiting] if waiting else []:
            waiting = {mid: each for mid, each in waiting.items() if not stays("", each.start.task)}
        # Most of them wait for what runs: that much is known of many at once.
        waiting_still = self._queries.under_way(waiting)
        awaited, times = self._queries.awaited_by(mid for mid in waiting if mid not in waiting_still)
        if times:
            now = self._queries.now_ms()
            waiting_still |= {mid for mid, due in times.items() if due > now}
        if awaited:
            hooks = plugin.extensions.still_awaited
            waiting_still |= {*gather(hooks, plugin.complain, self._ledger, awaited)}
        free = {mid: parked for mid, parked in waiting.items() if mid not in waiting_still}
        due = [(mid, parked) for mid, parked in self._that_may_run(free) if self._is_due(mid, parked, before)]
        return self._publish(due) if due else 0

    def _that_may_run(self, waiting: Mapping[str, Parked]) -> Iterator[tuple[str, Parked]]:
        """Yield the parked messages; of suspects only those for which a worker has a cell."""
        suspects = {} if self._trial_queue else {m: each for m, each in waiting.items() if each.start.alone}
        yield from ((mid, parked) for mid, parked in waiting.items() if mid not in suspects)
        if suspects:
            yield from whose_turn(self._ledger, suspects, self._activation_ms)

    def _is_due(self, mid: str, parked: Parked, finished: dict[str, float]) -> bool:
        """Whether no start of it is left: those that finish take its parking along."""
        recorded = self._ledger.messages.look(mid, parked.start.id, self._activation_ms)
        if recorded.start is not None and recorded.ended is Ended.DONE:
            token, now = recorded.start.token, time.monotonic()
            since = self._finished[token] = finished.get(token, now)
            if now - since > COURTESY:  # its acknowledgement was lost with its connection
                self._ledger.messages.clean_up([(mid, token)])
            return False
        return not recorded.is_in_the_way

    def _publish(self, due: list[tuple[str, Parked]]) -> int:
        published = 0
        with Publisher(self._app) as publisher:
            for mid, parked in due:
                alone = parked.start.alone and bool(self._trial_queue)
                queue = self._trial_queue if alone else parked.start.queue
                if queue in self._refusals or mid in self._refusals:
                    continue
                try:
                    published += self._publish_one(publisher, mid, parked, queue)
                except (LedgerUnavailable, Fenced):
                    raise
                except Refused as error:
                    self._refusals.note(queue, error)
                except NotPublished as error:
                    self._refusals.note("", error)
                    break  # the broker is away: each of the others would wait for it as long
                except Exception as error:
                    self._refusals.note(mid, error)
        return published

    def _publish_one(self, publisher: Publisher, mid: str, parked: Parked, queue: str) -> bool:
        packed = self._queries.parcel(mid)
        if packed is None:
            return False  # it is over, since a moment ago
        original = unpack(packed)
        headers = {name: value for name, value in original.headers.items() if name != TRIAL}
        if parked.start.alone and self._trial_queue:
            headers[TRIAL] = parked.start.queue
        publisher.publish(original, queue, {**headers, PARK: parked.number})
        return self._ledger.parking.unpark(mid, parked.number)
