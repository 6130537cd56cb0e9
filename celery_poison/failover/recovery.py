"""Cleans up after a dead worker: flags what was running, then puts its unacknowledged messages back.

In this order, and every step can be repeated: a monitor that dies in between is followed by another,
which begins again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from celery import Celery

from celery_poison import causes
from celery_poison.broker.putback import put_back
from celery_poison.errors import StaleDelivery
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.records import Start
from celery_poison.results import success_was_stored
from celery_poison.verdict import Ended, Phase

#: Seconds for which a finished start is remembered whose acknowledgement nobody heard of.
REMEMBER = 6 * 3600.0


#: Is told (task id, task name, cause, deaths so far) of every message that was flagged.
Flagged = Callable[[str, str, str, int], None]


class Recovery:
    """Recovers from the deaths of workers, on one app's broker and ledger."""

    def __init__(self, app: Celery, ledger: Ledger, flagged: Flagged) -> None:
        self._app = app
        self._flagged = flagged
        self._ledger = ledger
        self._queries = Queries(ledger)
        #: Starts of workers that nobody knows, and when they were first seen here.
        self._orphans: dict[str, float] = {}

    def recover(self, worker: str, incident: str) -> tuple[int, int]:
        """Flag what ``worker`` was running and put back what it held; return both numbers."""
        known = self._queries.incident(incident)
        peaceful = known is not None and known.cause == causes.SHUTDOWN
        flagged = 0
        finished = []
        starts = [row for row in self._queries.running() if row[1].worker == worker]
        receiving = any(start.phase == Phase.ADMITTING for _, start, _ in starts)
        for mid, start, raw in starts:
            if self._queries.ended(start.token) == Ended.DONE:
                finished.append((mid, start.token))
            elif peaceful or (receiving and start.alone and start.phase == Phase.RUNNING):
                # Its trial was spoilt by a message that was being received: it is tried again.
                self._interrupt(mid, start, known.cause if known else causes.UNKNOWN, incident)
            else:
                flagged += self._end(mid, start, raw, incident)
        queues = known.queues.split(",") if known is not None and known.queues else []
        returned = put_back(self._app, worker.rpartition("/")[2], queues)
        if returned.mids is not None:
            # What finished and did not come back was acknowledged: nobody will ask for it again.
            self._ledger.settle(pair for pair in finished if pair[0] not in returned.mids)
        return flagged, returned.count

    def _interrupt(self, mid: str, start: Start, cause: str, incident: str = "") -> None:
        with suppress(StaleDelivery):
            self._ledger.interrupt(mid, start, cause=cause, incident=incident)

    def _end(self, mid: str, start: Start, raw: bytes, incident: str) -> bool:
        """End one start of a dead worker; return whether its message was flagged."""
        ended = self._queries.ended(start.token)
        try:
            if start.phase == Phase.CLAIMED:
                self._ledger.claim(mid, raw, None)
            elif ended == Ended.ROLLED_BACK:
                self._ledger.rollback(mid, start, cause="rejected")
            elif ended == Ended.INTERRUPTED:
                self._ledger.interrupt(mid, start, cause=causes.WORKER_LOST, incident=incident)
            elif self._had_succeeded(start):
                self._ledger.client.hset(self._ledger.keys.done, start.token, Ended.DONE.value)
            else:
                return self._crash(mid, start, incident)
        except StaleDelivery:
            pass
        return False

    def _crash(self, mid: str, start: Start, incident: str) -> bool:
        receiving = start.phase == Phase.ADMITTING
        cause = causes.RECEIVE if receiving else causes.WORKER_LOST
        shared = not (receiving or start.alone)
        recorded = self._ledger.crash(mid, start, cause=cause, shared=shared, incident=incident)
        if recorded.finished:
            return False
        if start.diverts:
            self._flagged(start.id, start.task, cause, recorded.history.crashes)
        return True

    def _had_succeeded(self, start: Start) -> bool:
        task = self._app.tasks.get(start.task)
        return task is not None and success_was_stored(task, start.id)

    def sweep_orphans(self, patience: float) -> None:
        """End starts whose worker nobody knows (Redis lost its lease): unknown, so nobody's fault.

        Args:
            patience: seconds for which such a worker may still come back.
        """
        known = set(self._queries.leases()) | set(self._queries.open_incidents())
        now, seen = time.monotonic(), self._orphans
        self._orphans = {}
        for mid, start, _ in self._queries.running():
            if start.worker in known:
                continue
            since = self._orphans[start.token] = seen.get(start.token, now)
            if self._queries.ended(start.token) == Ended.DONE:
                if now - since > REMEMBER:
                    self._ledger.settle([(mid, start.token)])
            elif now - since > patience:
                self._interrupt(mid, start, causes.UNKNOWN)
