"""Sends the signals of monitors, of deaths and failovers, in a program that only publishes (EMS-5).

It reads what monitors write to the ledger anyway, so that it costs workers nothing, and hears later of what
happened while Redis was away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from celery_poison.ledger import Ledger
from celery_poison.ledger.fleet_model import Incident

logger = logging.getLogger("celery_poison")

#: Seconds between two looks, each of them two small reads.
LOOK_EVERY = 1.0
#: Seconds for which :meth:`Listener.stop` waits for a look that is under way.
STOP_TIMEOUT = 5.0
#: Milliseconds by which Redis' clock may be set back without an incident being missed.
MARGIN_MS = 60_000


class Listener:
    """Looks at the ledger in a daemon thread from its :meth:`start` to its :meth:`stop`; a context manager.

    Args:
        send: takes the name of a signal and its arguments.
    """

    def __init__(self, ledger: Ledger, send: Callable[[str, Mapping[str, Any]], object]) -> None:
        self._queries, self._send = ledger.read, send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="poison-listener", daemon=True)
        #: Up to where the list of incidents was read, in ms of Redis' clock; None: not yet.
        self._until: int | None = None
        self._seen: frozenset[str] = frozenset()
        #: Those whose end is not reported yet.
        self._open: set[str] = set()
        self._fence: int | None = None

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Listen no more; wait for the thread, unless a receiver calls this in it."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _work(self) -> None:
        is_well = True
        while not self._over.is_set():
            try:
                self._look()
                is_well = True
            except Exception as error:
                if is_well:
                    logger.warning("celery_poison: deaths and failovers are not signalled for now: %s", error)
                is_well = False
            self._over.wait(LOOK_EVERY)

    def _look(self) -> None:
        """Send the signals of what is new since the last look; the first look sends none."""
        worker, fence = self._queries.monitor_fence()
        if fence != self._fence and self._fence is not None:
            self._send("monitor_changed", {"worker": worker, "fence": fence})
        self._fence = fence
        is_first = self._until is None
        since = self._queries.now_ms() if self._until is None else self._until
        incidents = self._queries.incidents_since(since - MARGIN_MS)
        new = [] if is_first else [incident for incident in incidents if incident not in self._seen]
        self._until, self._seen = (
            max(since, *incidents.values()) if incidents else since,
            frozenset(incidents),
        )
        self._open.update(new)
        for incident in [*new, *self._open.difference(new)]:
            self._tell(self._queries.incident(incident), incident, is_new=incident in new)

    def _tell(self, incident: Incident | None, id: str, *, is_new: bool) -> None:
        if incident is None:  # Redis has forgotten it
            self._open.discard(id)
            return
        facts: dict[str, Any] = {"worker": incident.worker, "incident": id}
        if is_new:
            self._send("worker_lost", {**facts, "cause": incident.cause, "how": incident.how})
            self._send("failover_started", facts)
        if incident.finished_at is not None:
            self._open.discard(id)
            done = {name: getattr(incident, name) for name in ("put_back", "flagged", "returned")}
            self._send("failover_finished", {**facts, **done})
