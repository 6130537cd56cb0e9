"""The way of a healthy message through a worker, in the order of its life.

It is *received* and admitted, *dispatched* and *sent* here, each by one method in place of Celery's. Its
process has it *started*, *run* and *ended* (``child.run_guarded``). Its request hears that it has ended, and
*acknowledges* it (``request.GuardedRequest.on_success``).

A healthy message is known at sight, by the plan of its task (:mod:`.plans`). At each step, whatever is not
goes to the part that looks closer. That part would let a healthy one pass, too: here one may be taken for a
message that needs care, and never the other way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery.worker import state

from celery_poison.headers import MARK, PARK, RELEASE, TRIAL, stamp_of
from celery_poison.upstream.requests import GARBAGE
from celery_poison.worker.broadcasts import Broadcasts
from celery_poison.worker.dispatcher import Dispatcher
from celery_poison.worker.heartbeat import Shutdown
from celery_poison.worker.inflight import InFlight
from celery_poison.worker.lease import Lease
from celery_poison.worker.opening import Opening
from celery_poison.worker.rejoin import Rejoin
from celery_poison.worker.site import Site
from celery_poison.worker.unprocessable import Unprocessable

#: Headers of messages that need care.
_CARE = frozenset((RELEASE, MARK, PARK, TRIAL, "compression"))
#: Time limits as Celery sends them where there are none.
_NO_LIMITS = (None, [None, None])


@dataclass(eq=False, repr=False)
class Road:
    """Stands in for Celery's methods on a message's way to the pool, on the event loop.

    Attributes:
        opening: takes a message that is not known to be healthy.
    """

    site: Site
    opening: Opening
    unprocessable: Unprocessable
    inflight: InFlight
    broadcasts: Broadcasts
    rejoin: Rejoin
    lease: Lease
    shutdown: Shutdown

    def __post_init__(self) -> None:
        self._turn = threading.Lock()
        self._plans, self._loop, settings = self.site.plans, self.site.loop, self.site.settings
        self._keeps = settings.keep_unprocessable
        self._is_open = settings.fail_open and not settings.observe_only
        self.unprocessable.past = Road.dispatch.__code__

    def receive(self, message: Any) -> Any:
        """Have Celery make a request of a message that it has received (``on_task_received``)."""
        if not self._is_let_in(message):
            return self.opening(message)
        if not _is_call(message):
            return self.unprocessable.take(message)
        try:
            return self.unprocessable.handler(message)
        except Exception as error:
            if not self._keeps or not self.unprocessable.takes_broken(message, error):
                raise

    def _is_let_in(self, message: Any) -> bool:
        """Whether a message is let in at sight: a first delivery in JSON, of a task whose plan is open."""
        headers = message.headers
        try:
            plan = self._plans.known.get(headers["task"])
            if plan is None or not plan.is_open or message.content_type != "application/json":
                return False
            if message.delivery_info.get("redelivered") or not headers.keys().isdisjoint(_CARE):
                return False
            if message.queue_name not in self.broadcasts.ordinary or not (mid := stamp_of(headers)):
                return False
            # Last: it is noted by this.
            return "id" in headers and not self.inflight.meets_again(message, mid)
        except Exception:  # who looks closer says what is wrong with it
            return False

    def dispatch(self, request: Any) -> None:
        """Let a request go to the pool, if nothing has to run alone (``on_task_request``)."""
        dispatcher = self.dispatcher
        is_usual = getattr(request, "poison", None) is None and self._is_open
        is_clear = not dispatcher.waiting and dispatcher.alone is None and not self.rejoin.is_fenced
        if is_usual and is_clear and not self.lease.is_doubtful():
            dispatcher.dispatch(request)
        else:
            dispatcher(request)

    def send(self, request: Any) -> Any:
        """Give a request to the pool (``_process_task``); none that has gone back, or that no pool takes."""
        loop = self._loop
        loop.handing += 1
        request.message.is_handed = True
        try:
            if self.rejoin.is_fenced:
                return state.task_ready(request)  # the places are counted anew with the next connection
            return self._process(request)
        except GARBAGE as error:
            if not self._keeps or not self.unprocessable.takes_back(request, error):
                raise
        finally:
            loop.handing -= 1

    def send_to_greenlet(self, request: Any) -> None:
        """Give a request to a pool of greenlets when one is free; none once the worker leaves.

        In the pool it would wait as one that may have begun, and begin when all others have ended: the
        worker waits for these alone.
        """
        loop, pool = self._loop, self._loop.consumer.pool._pool
        loop.handing += 1
        request.message.is_handed = True
        try:
            # One by one: where others wait, too, who has seen a free one may wait for it once more.
            with self._turn:
                if hasattr(pool, "wait_available"):  # gevent's
                    pool.wait_available()
                else:
                    with pool.sem:
                        pass
                if not self.shutdown.is_begun:  # else it goes back as one that has not begun
                    self.send(request)
        finally:
            loop.handing -= 1

    # --- how it gets there ---------------------------------------------------------------------

    def follow(self, consumer: Any, dispatcher_of: Callable[[Any], Dispatcher]) -> Dispatcher:
        """Stand in for the methods of a consumer and its worker, from now on; return its dispatcher."""
        self.stand_before_pool(consumer)
        self.dispatcher, create = dispatcher_of(consumer), consumer.create_task_handler
        consumer.on_task_request = self.dispatch

        def create_task_handler(*args: Any, **options: Any) -> Callable[[Any], Any]:
            self.unprocessable.handler = create(*args, **options)
            return self.receive

        consumer.create_task_handler = create_task_handler
        return self.dispatcher

    def stand_before_pool(self, consumer: Any) -> None:
        """Stand in for what gives a request to the pool."""
        controller = consumer.controller
        self._process: Callable[[Any], Any] = controller._process_task
        if self.site.settings.observe_only:
            return
        send = self.send_to_greenlet if consumer.pool.is_green else self.send
        controller._process_task = send
        if consumer.on_task_request == self._process:  # nobody waits there for a place in the pool
            consumer.on_task_request = send


def _is_call(message: Any) -> bool:
    """Whether Celery can make a request of a message, for all that is seen at once."""
    headers = message.headers
    try:
        args, kwargs, embed = message.payload
        is_plain = headers["eta"] is headers["shadow"] is None and headers["timelimit"] in _NO_LIMITS
        return is_plain and type(args) is list and type(kwargs) is type(embed) is dict
    except Exception:
        return False
