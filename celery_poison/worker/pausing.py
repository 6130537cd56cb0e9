"""Acts on pauses, in one worker: it does not consume paused queues, and puts back what it has of them.

Celery's own means: what ``celery control cancel_consumer`` and ``add_consumer`` do. A queue that is not among
those to be consumed from is not consumed after a lost connection either, nor by a worker that starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from celery import Celery
from celery.utils.log import get_logger
from celery.worker import state
from kombu import Queue

from celery_poison.broker.unacked import number_of
from celery_poison.ledger import Ledger
from celery_poison.ledger.pauses import Paused
from celery_poison.pauses import Pause, Scope
from celery_poison.plugin import plugin_of
from celery_poison.worker.announce import Announcer
from celery_poison.worker.endpoints import Endpoints
from celery_poison.worker.rejoin import Incarnation
from celery_poison.worker.threads import Background, EventLoop

logger = get_logger("celery_poison")


class Waiting(Protocol):
    """A guarded request that has not gone to the pool."""

    message: Any

    def put_back_if_paused(self) -> bool: ...


class Pausing:
    """What is paused, as this worker knows it, and the queues that it does not consume for that reason.

    Attributes:
        paused: the local copy.
        endpoints: what this worker suspends by itself.

    Args:
        complain: is told of what is not usable.
    """

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        me: Incarnation,
        background: Background,
        loop: EventLoop,
        announce: Announcer,
        complain: Callable[[Exception], object],
    ) -> None:
        self.paused = Paused(ledger, complain)
        self._app = app
        self._me = me
        self._loop = loop
        settings = plugin_of(app).settings
        self.endpoints = Endpoints(settings, ledger, me, background, loop, announce, self.changed)
        #: What was taken out here, and only that is put in again.
        self._out: dict[str, Queue] = {}

    def out(self) -> list[str]:
        """Return the names of the queues that this worker would consume, if they were not paused."""
        return sorted(self._out)

    def refresh(self) -> None:
        """Take over what has changed in the ledger, and act on it.

        Raises:
            LedgerUnavailable: Redis is away; what was paused stays so.
        """
        begun, ended = self.paused.refresh()
        _log(begun, ended)
        if self._loop.consumer is None:  # this worker starts
            self.endpoints.adopt(self.paused.suspended(self._me.node))
            self._follow()
        elif begun or ended:
            self.endpoints.follow(self.paused.suspended(self._me.node))
            self.changed()

    def look(self) -> None:
        """Let go on what was suspended for a time that is over; also while Redis is away."""
        self.endpoints.look()

    def changed(self) -> None:
        """Act on what has changed; from any thread."""
        self._loop.call_in_loop(self._follow)
        self._loop.call_in_loop(_put_back)

    def _is_stopped(self, queue: str) -> bool:
        return self.paused(Scope.QUEUE, queue) or self.endpoints.stops(queue)

    def _follow(self) -> None:
        """Consume what is not paused, and nothing else (on the event loop)."""
        queues = self._app.amqp.queues
        for name, queue in list(queues.consume_from.items()):
            if self._is_stopped(name):
                self._out[name] = queue
                queues.deselect(name)
                self._with_consumer(partial(_cancel, name))
        for name in [name for name in self._out if not self._is_stopped(name)]:
            self._with_consumer(partial(_consume, queues.select_add(self._out.pop(name))))

    def _with_consumer(self, act: Callable[[Any], object]) -> None:
        consumer = getattr(self._loop.consumer, "task_consumer", None)
        if consumer is not None:  # else there is no connection: the next one consumes what is selected
            act(consumer)


def _log(begun: Iterable[Pause], ended: Iterable[Pause]) -> None:
    """Tell what a person did; of what suspended itself its own worker tells."""
    for pause in begun:
        if pause.scope is not Scope.ENDPOINT:
            logger.warning("celery_poison: %s", pause.story)
    for pause in ended:
        if pause.scope is not Scope.ENDPOINT:
            logger.warning("celery_poison: %s %s is not paused any more", pause.scope, pause.name)


def _cancel(name: str, consumer: Any) -> None:
    consumer.cancel_by_queue(name)


def _consume(queue: Queue, consumer: Any) -> None:
    if not consumer.consuming_from(queue.name):
        consumer.add_queue(queue)
        consumer.consume()


def _put_back() -> None:
    """Put back what is paused and has not begun, the oldest last: it is the first in line then."""
    for request in sorted(_not_begun(), key=_number, reverse=True):
        request.put_back_if_paused()


def _not_begun() -> list[Waiting]:
    while True:
        with suppress(RuntimeError):  # a pool thread finished a request meanwhile
            begun = set(map(id, state.active_requests))
            here = [request for request in state.reserved_requests if id(request) not in begun]
            return [request for request in here if hasattr(request, "put_back_if_paused")]


def _number(request: Waiting) -> int:
    # RabbitMQ's tags are numbers; ours on Redis end with one.
    return number_of(f"-{request.message.delivery_tag}")
