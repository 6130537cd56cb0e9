"""Suspends this worker's consumption of a queue whose tasks fail, and resumes it (WAS-6).

:mod:`celery_poison.suspension` decides. A suspension is on record before anything stops, so that not too many
workers suspend themselves at a time; while Redis is away none does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from celery_poison import signals
from celery_poison.decide import End
from celery_poison.ledger import Ledger
from celery_poison.ledger.queries import Queries
from celery_poison.settings import Settings
from celery_poison.suspension import FRESH, PROBING, Bounds, Endpoint, Mode, after_run, most_suspended
from celery_poison.worker.announce import Announcer
from celery_poison.worker.rejoin import Incarnation
from celery_poison.worker.threads import Background, EventLoop

logger = get_logger("celery_poison")

#: Seconds before its end in which a suspension that is not on record any more is simply over.
CLOSE_TO_ITS_END = 1.0


@dataclass(eq=False, repr=False)
class Endpoints:
    """The endpoints of one worker.

    Args:
        changed: called when the worker has to consume another set of queues.
    """

    settings: Settings
    ledger: Ledger
    me: Incarnation
    background: Background
    loop: EventLoop
    announce: Announcer
    changed: Callable[[], object]
    #: By queue; whoever is not in here consumes, and nothing has failed lately.
    _states: dict[str, Endpoint] = field(default_factory=dict, init=False)
    #: Until when it is suspended, by the monotonic clock.
    _until: dict[str, float] = field(default_factory=dict, init=False)
    #: The request whose end decides.
    _probes: dict[str, Any] = field(default_factory=dict, init=False)
    #: Of which Redis is being asked whether they may be suspended.
    _asked_for: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        bounds = Bounds(self.settings.suspend_after_failures, self.settings.suspend_failure_ratio)
        self._bounds = Bounds() if self.settings.observe_only else bounds
        self._is_on = self._bounds.are_set
        self._lock = Lock()

    def stops(self, queue: str, request: Any = None) -> bool:
        """Whether nothing of this queue may be consumed, or this request not begin."""
        endpoint = self._states.get(queue)
        if endpoint is None or endpoint.mode is Mode.CONSUMING:
            return False
        probe = self._probes.get(queue)
        return endpoint.mode is Mode.SUSPENDED or (probe is not None and probe is not request)

    # --- runs ----------------------------------------------------------------------------------

    def begins(self, queue: str, request: Any) -> None:
        """A request goes to the pool: after a suspension the first of its queue is the probe."""
        endpoint = self._states.get(queue)
        if endpoint is not None and endpoint.mode is Mode.PROBING and queue not in self._probes:
            self._probes[queue] = request
            self.changed()

    def ended(self, queue: str, request: Any, end: End) -> None:
        """A run has ended (on the event loop, or in a thread of the pool)."""
        if not self._is_on or not queue:
            return
        with self._lock:
            before = self._states.get(queue, FRESH)
            probe = self._probes.get(queue) is request
            after = after_run(before, end, self._bounds, probe=probe)
            if queue in self._asked_for:
                return
            is_too_much = after.mode is Mode.SUSPENDED and before.mode is not Mode.SUSPENDED
            if is_too_much:  # nothing changes before Redis has answered
                self._asked_for.add(queue)
            else:
                self._states[queue] = after
                if probe:
                    del self._probes[queue]
        if is_too_much:
            ask = partial(self._suspend, queue, after.reason)
            self.background.do(ask, partial(self._is_not_suspended, queue))
        elif probe:
            if after is FRESH:
                logger.warning("celery_poison: queue %s is consumed again: its probe succeeded", queue)
            self.changed()

    # --- in the background thread --------------------------------------------------------------

    def _suspend(self, queue: str, reason: str) -> None:
        settings = self.settings
        workers = Queries(self.ledger).workers(int(settings.activation_interval * 1000))
        consumers = sum(queue in worker.all_queues for worker in workers if worker.alive)
        granted = self.ledger.suspend(
            self.me.node,
            queue,
            lasts_ms=int(settings.suspend_for * 1000),
            most=most_suspended(consumers, settings.suspend_share),
            worker=self.me.worker,
            reason=reason,
        )
        if not granted:
            logger.warning("celery_poison: queue %s: %s; as many others are suspended", queue, reason)
            self._is_not_suspended(queue)
            return
        with self._lock:
            self._states[queue] = Endpoint(Mode.SUSPENDED, reason=reason)
            self._until[queue] = time.monotonic() + settings.suspend_for
            self._probes.pop(queue, None)
            self._asked_for.discard(queue)
        logger.error(
            "celery_poison: queue %s is not consumed here for %g s: %s", queue, settings.suspend_for, reason
        )
        self._tell(signals.endpoint_suspended, queue=queue, reason=reason)
        self.changed()

    def _is_not_suspended(self, queue: str) -> bool:
        """Begin to count anew; False, since nobody waits for it."""
        with self._lock:
            self._states.pop(queue, None)
            self._probes.pop(queue, None)
            self._asked_for.discard(queue)
        self.changed()
        return False

    def look(self) -> None:
        """Let those probe whose time is over."""
        now = time.monotonic()
        for queue in [queue for queue, until in self._until.items() if until <= now]:
            self._resume(queue, PROBING)
            end = partial(self.ledger.end_suspension, self.me.node, queue, worker=self.me.worker)
            self.background.do(end)
        if self._probes:
            self.loop.call_in_loop(self._forget_lost_probes)

    def adopt(self, remaining: Mapping[str, float]) -> None:
        """Stay suspended where this node was when it was stopped; queue -> seconds."""
        for queue, seconds in remaining.items():
            self._states[queue] = Endpoint(Mode.SUSPENDED, reason="since before this worker was started")
            self._until[queue] = time.monotonic() + seconds

    def follow(self, on_record: Mapping[str, float]) -> None:
        """A person has resumed what is not on record any more."""
        latest = time.monotonic() + CLOSE_TO_ITS_END
        for queue in [queue for queue, until in self._until.items() if until > latest]:
            if queue not in on_record:
                self._resume(queue, FRESH)

    def _resume(self, queue: str, endpoint: Endpoint) -> None:
        with self._lock:
            self._states[queue] = endpoint
            del self._until[queue]
        how = "one message is tried" if endpoint is PROBING else "somebody resumed it"
        logger.warning("celery_poison: queue %s is not suspended any more: %s", queue, how)
        self._tell(signals.endpoint_resumed, queue=queue)
        self.changed()

    def _tell(self, signal: Any, **facts: Any) -> None:
        facts["worker"] = self.me.worker
        self.loop.call_in_loop(partial(signal.send, sender=None, **facts))
        self.loop.call_in_loop(partial(self.announce.fleet, signal.name, facts))

    def _forget_lost_probes(self) -> None:
        """A probe that was lost with its connection, or revoked, decides nothing: the next one does."""
        here = (*state.reserved_requests, *state.active_requests)
        lost = [queue for queue, probe in self._probes.items() if probe not in here]
        with self._lock:
            for queue in set(lost) - self._asked_for:
                self._probes.pop(queue, None)
        if lost:
            self.changed()
