"""Does not consume what is paused or suspended, and puts back what this worker has of it.

Celery's own means: what ``celery control cancel_consumer`` and ``add_consumer`` do. A queue that is not among
those to be consumed from is not consumed after a lost connection either, nor by a worker that starts.

A person pauses. This worker suspends a queue whose tasks fail, and resumes it (WAS-6), as
:mod:`celery_poison.extensions.holds.suspension` decides. A suspension is on record before anything stops, so
that not too many workers suspend themselves at a time; while Redis is away none does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state
from kombu import Queue

from celery_poison import signals
from celery_poison.basics.parts import Hold
from celery_poison.broker.tags import number_of
from celery_poison.decide import End
from celery_poison.extensions.holds.pauses import HoldPauses, Paused, Scope
from celery_poison.extensions.holds.settings import HoldsSettings
from celery_poison.extensions.holds.suspension import (
    FRESH,
    PROBING,
    Bounds,
    Endpoint,
    Mode,
    after_run,
    most_suspended,
)
from celery_poison.worker.site import Site

logger = get_logger("celery_poison")

#: Seconds before its end in which a suspension that is not on record any more is simply over.
CLOSE_TO_ITS_END = 1.0


@dataclass(eq=False, repr=False)
class Endpoints:
    """The endpoints of one worker.

    Args:
        changed: called when the worker has to consume another set of queues.
    """

    site: Site
    changed: Callable[[], object]
    #: By queue; a queue that is not in here is consumed, and nothing has failed lately.
    _states: dict[str, Endpoint] = field(default_factory=dict, init=False)
    #: Until when it is suspended, by the monotonic clock.
    _until: dict[str, float] = field(default_factory=dict, init=False)
    #: The request whose end decides.
    _probes: dict[str, Any] = field(default_factory=dict, init=False)
    #: Of which Redis is being asked whether they may be suspended.
    _asked_for: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        settings, queues = self.site.settings, self.site.settings.queues or {}
        self._own = settings.of(HoldsSettings)
        self._bounds = Bounds(self._own.suspend_after_failures, self._own.suspend_failure_ratio)
        self._bounds_of = {queue: self._bounds.at(options) for queue, options in queues.items()}
        every = (self._bounds, *self._bounds_of.values())
        self._is_on = not settings.observe_only and any(bounds.are_set for bounds in every)
        self._lock = Lock()

    def stops(self, queue: str, request: Any = None) -> bool:
        """Whether nothing of this queue may be consumed, or this request not begin."""
        endpoint = self._states.get(queue)
        if endpoint is None or endpoint.mode is Mode.CONSUMING:
            return False
        probe = self._probes.get(queue)
        return endpoint.mode is Mode.SUSPENDED or (probe is not None and probe is not request)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is suspended, and nothing ever will be."""
        return not self._is_on and not self._states

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
        own_limit = end is End.TIMED_OUT and request.brought_its_limit
        if own_limit or (end is End.RAISED and not _fits(request)):
            end = End.REJECTED  # the fault of the message: it says nothing about the queue
        self._judge(queue, request, end)

    def _judge(self, queue: str, request: Any, end: End) -> None:
        with self._lock:
            before = self._states.get(queue, FRESH)
            probe = self._probes.get(queue) is request
            after = after_run(before, end, self._bounds_of.get(queue, self._bounds), probe=probe)
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
            self.site.background.do(ask, partial(self._cancel_suspension, queue))
        elif probe:
            if after is FRESH:
                logger.warning("celery_poison: queue %s is consumed again: its probe succeeded", queue)
            self.changed()

    # --- in the background thread --------------------------------------------------------------

    def _suspend(self, queue: str, reason: str) -> None:
        settings = self.site.settings
        workers = self.site.ledger.read.workers(int(settings.activation_interval * 1000))
        consumers = sum(queue in worker.all_queues for worker in workers if worker.alive)
        granted = HoldPauses(self.site.ledger).suspend(
            self.site.me.node,
            queue,
            lasts_ms=int(self._own.suspend_for * 1000),
            most=most_suspended(consumers, self._own.suspend_share),
            worker=self.site.me.worker,
            reason=reason,
        )
        if not granted:
            logger.warning("celery_poison: queue %s: %s; as many others are suspended", queue, reason)
            self._cancel_suspension(queue)
            return
        with self._lock:
            self._states[queue] = Endpoint(Mode.SUSPENDED, reason=reason)
            self._until[queue] = time.monotonic() + self._own.suspend_for
            self._probes.pop(queue, None)
            self._asked_for.discard(queue)
        logger.error(
            "celery_poison: queue %s is not consumed here for %g s: %s", queue, self._own.suspend_for, reason
        )
        self._tell(signals.endpoint_suspended, queue=queue, reason=reason)
        self.changed()

    def _cancel_suspension(self, queue: str) -> bool:
        """Begin to count anew; False, since nothing waits for it."""
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
            pauses, me = HoldPauses(self.site.ledger), self.site.me
            end = partial(pauses.end_suspension, me.node, queue, worker=me.worker)
            self.site.background.do(end)
        if self._probes:
            self.site.loop.call_in_loop(self._forget_lost_probes)

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
        how = "one message is tried" if endpoint is PROBING else "a person resumed it"
        logger.warning("celery_poison: queue %s is not suspended any more: %s", queue, how)
        self._tell(signals.endpoint_resumed, queue=queue)
        self.changed()

    def _tell(self, signal: Any, **facts: Any) -> None:
        facts["worker"] = self.site.me.worker
        self.site.loop.call_in_loop(partial(signal.send, sender=None, **facts))
        self.site.loop.call_in_loop(partial(self.site.announce.fleet, signal.name, facts))

    def _forget_lost_probes(self) -> None:
        """A probe that was lost with its connection, or revoked, decides nothing: the next one does."""
        here = (*state.reserved_requests, *state.active_requests)
        lost = [queue for queue, probe in self._probes.items() if probe not in here]
        with self._lock:
            for queue in set(lost) - self._asked_for:
                self._probes.pop(queue, None)
        if lost:
            self.changed()


class Pausing(Hold):
    """What is paused, as this worker knows it, and the queues that it does not consume for that reason.

    Attributes:
        paused: the local copy.
        endpoints: what this worker suspends by itself.
    """

    def __init__(self, site: Site) -> None:
        self.paused = Paused(site.ledger, site.complain, site.settings.code_version)
        self._app, self._me, self._loop = site.app, site.me, site.loop
        self.endpoints = Endpoints(site, self.changed)
        #: What was taken out here, and only that is put in again.
        self._out: dict[str, Queue] = {}

    def parks(self, task: str, *, as_of_now: bool = False) -> bool:
        paused = self.paused.as_of_now() if as_of_now else self.paused
        return paused(Scope.TASK, task)

    @property
    def is_at_rest(self) -> bool:  # type: ignore[override]
        return not self.paused.by_field and self.endpoints.is_at_rest

    def stops(self, queue: str, task: str, request: Any) -> bool:
        return self.paused.stops(queue, task) or self.endpoints.stops(queue, request)

    def begins(self, queue: str, request: Any) -> None:
        self.endpoints.begins(queue, request)

    def ended(self, queue: str, request: Any, end: End) -> None:
        self.endpoints.ended(queue, request, end)

    def out(self) -> list[str]:
        return sorted(self._out)

    def refresh(self, *, is_up: bool) -> None:
        self.endpoints.look()  # a time may be over while Redis is away
        if is_up:
            self._follow_ledger()

    def _follow_ledger(self) -> None:
        """Take over what has changed in the ledger, and act on it.

        Raises:
            LedgerUnavailable: Redis is away; what was paused stays so.
        """
        begun, ended = self.paused.refresh()
        self.version += bool(begun or ended)
        # A suspension by an endpoint is reported by its own worker.
        for pause in (pause for pause in begun.values() if pause.scope is not Scope.ENDPOINT):
            logger.warning("celery_poison: %s", pause.story)
        for pause in (pause for pause in ended.values() if pause.scope is not Scope.ENDPOINT):
            logger.warning("celery_poison: %s %s is not paused any more", pause.scope, pause.name)
        if self._loop.consumer is None:  # this worker starts
            self.endpoints.adopt(self.paused.suspensions_of(self._me.node))
            self._follow()
        elif begun or ended:
            self.endpoints.follow(self.paused.suspensions_of(self._me.node))
            self.changed()

    def changed(self) -> None:
        """Act on what has changed; from any thread."""
        self._loop.call_in_loop(self._follow)
        self._loop.call_in_loop(_put_back)

    def _is_stopped(self, queue: str) -> bool:
        return self.paused(Scope.QUEUE, queue) or self.endpoints.stops(queue)

    def _follow(self) -> None:
        """Consume what is not paused, and nothing else (on the event loop)."""
        queues = self._app.amqp.queues
        # Where there is no connection, the next one consumes what is selected.
        consumer = getattr(self._loop.consumer, "task_consumer", None)
        for name, queue in list(queues.consume_from.items()):
            if self._is_stopped(name):
                self._out[name] = queue
                queues.deselect(name)
                if consumer is not None:
                    consumer.cancel_by_queue(name)
        for name in [name for name in self._out if not self._is_stopped(name)]:
            queue = queues.select_add(self._out.pop(name))
            if consumer is not None and not consumer.consuming_from(queue.name):
                consumer.add_queue(queue)
                consumer.consume()


def _put_back() -> None:
    """Put back what is paused and has not begun, the oldest last: it is the first in line then."""
    here = None
    while here is None:
        with suppress(RuntimeError):  # a pool thread finished a request meanwhile
            begun = set(map(id, state.active_requests))
            here = [request for request in state.reserved_requests if id(request) not in begun]
    guarded: list[Any] = [request for request in here if hasattr(request, "put_back_if_paused")]
    # RabbitMQ's tags are numbers; ours on Redis end with one.
    guarded.sort(key=lambda request: number_of(f"-{request.message.delivery_tag}"), reverse=True)
    for request in guarded:
        request.put_back_if_paused()


def _fits(request: Any) -> bool:
    """Whether the arguments of a request fit the signature of its task, as far as that is known."""
    try:
        request.task.__header__(*request.args, **request.kwargs)
    except TypeError:
        return False
    except Exception:
        return True
    return True
