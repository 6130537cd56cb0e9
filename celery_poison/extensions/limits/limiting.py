"""Keeps queues below their limits, as far as one process that publishes can know (MSG-1, MSG-2).

While there is much room, the broker is not asked at each publish: after a count, a process publishes a tenth
of the room that it found, for at most a second, before it counts again. At the limit it always counts.

A group, or the header of a chord, is published as a whole or not at all (MSG-6). Celery publishes the
messages of a group one by one, and tells nobody how many there will be. So the two methods that begin it,
which belong to no app, look first; for an app without limits they are what they were.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from threading import Lock
from typing import Any

from celery import Celery
from celery.canvas import _chain, _chord, group, maybe_signature
from celery.utils.log import get_logger

from celery_poison.broker.capture import captured_by, exempt, limited
from celery_poison.broker.kinds import broker_of, depth
from celery_poison.broker.routes import routed_to
from celery_poison.errors import ConfigurationError, QueueFull
from celery_poison.extension import Extension
from celery_poison.rules.limits import Limit, are_set, limit_of
from celery_poison.settings import Settings
from celery_poison.upstream import hooks

logger = get_logger("celery_poison")

#: Part of the room that a process may use up before it counts again, and for how many seconds.
TENTH, FRESH = 10, 1.0
#: Messages that are discarded at once, at most, beyond what must go.
MOST = 100
#: Options that say where a message goes.
_ADDRESS = ("queue", "exchange", "exchange_type", "routing_key")


@dataclass(slots=True)
class _Room:
    """The number of messages that may be published to a queue before they are counted again."""

    left: int = 0
    until: float = 0.0


class LimitsExtension(Extension):
    """The limits of the queues of one app, in one process; any thread may ask."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self._settings: Settings | None = None
        self._any = False
        self._known: dict[str, Limit | None] = {}
        self._rooms: dict[str, _Room] = {}
        self._lock = Lock()

    def installed(self) -> None:
        watch_groups()

    def publishing(self, producer: Any, message: Any, options: Mapping[str, Any]) -> None:
        """Let one message of Celery's be published, given what ``send_task_message`` is given.

        Raises:
            QueueFull: a queue that it would go to is full (MSG-2).
        """
        if not self.are_set():
            return
        wanted = {queue: 1 for queue in self.queues_of(options) if self.limit(queue)}
        # Far from the limit it does not matter what is exempt, and to find out takes as long as all the rest.
        if wanted and not self._take_room(wanted) and not _is_exempt(self.host.app, message):
            self.take(producer.connection, wanted, lambda: flush(producer))

    def sending(self, connection: Any, exchange: str, routing_key: str, number: int) -> None:
        queues = self.queues_of_address(exchange, routing_key)
        self.take(connection, dict.fromkeys(queues, number))

    def take(
        self, connection: Any, wanted: Mapping[str, int], flush: Callable[[], object] = lambda: None
    ) -> None:
        """Let so many messages into each queue, or none into any.

        Args:
            flush: has the broker take what was published before, so that it is counted.

        Raises:
            QueueFull: one has not so much room.
        """
        for queue, number in wanted.items():
            limit = self.limit(queue)
            if limit is not None and not self._has_room(queue, number):
                self._rooms[queue] = self._counted(connection, queue, limit, number, flush)
        with self._lock:
            for queue, number in wanted.items():
                if room := self._rooms.get(queue):
                    room.left -= number

    def limit(self, queue: str) -> Limit | None:
        """Return the limit of a queue; None where it has none."""
        if not self.are_set():
            return None
        if queue not in self._known:
            self._known[queue] = limit_of(self.host.settings, queue)
        return self._known[queue]

    def queues_of(self, options: Mapping[str, Any]) -> Sequence[str]:
        """Return the queues that a message goes to, by what this app knows of its queues.

        Args:
            options: of ``send_task_message``; ``exchange``, ``routing_key`` and ``queue`` count.
        """
        amqp, queue = self.host.app.amqp, options.get("queue")
        exchange, key = options.get("exchange"), options.get("routing_key")
        if queue is None and exchange is None:
            queue = amqp.default_queue
        name = queue if isinstance(queue, str) or queue is None else queue.name
        if isinstance(queue, str):
            queue = amqp.queues.get(queue)
        own = getattr(queue, "exchange", None)
        kind = options.get("exchange_type") or getattr(own, "type", None) or "direct"
        if kind == "direct" and not (exchange and key):
            return [name] if name else []
        exchange = exchange or own
        key = key or getattr(queue, "routing_key", "") or ""
        return self.queues_of_address(str(getattr(exchange, "name", exchange) or ""), key)

    def queues_of_address(self, exchange: str, key: str) -> Sequence[str]:
        """Return the queues of this app that an exchange and a routing key lead to."""
        if not exchange:
            return [key]
        queues = [each for each in self.host.app.amqp.queues.values() if each.exchange.name == exchange]
        return routed_to(queues, exchange, key)

    def are_set(self) -> bool:
        """Whether any queue may have a limit."""
        try:
            settings = self.host.settings
        except ConfigurationError:  # stops workers, not those who only publish
            return False
        if settings is not self._settings:
            self._any = are_set(settings)
            self._known, self._settings = {}, settings
        return self._any

    @cached_property
    def _discard(self) -> Callable[[Any, str, int], int]:
        from celery_poison.extensions.limits.discarder import (
            Discarder,  # it reads messages as quarantine does
        )

        return Discarder(self.host.app)

    @cached_property
    def _filling(self) -> Callable[[str, int, int], None]:
        from celery_poison.keep.room import Filling

        return Filling(lambda: self.host.quick_ledger)

    def _take_room(self, wanted: Mapping[str, int]) -> bool:
        """Take the room for so many messages, if what was counted lately is enough for all of them."""
        with self._lock:
            if not all(self._has_room(queue, number) for queue, number in wanted.items()):
                return False
            for queue, number in wanted.items():
                self._rooms[queue].left -= number
        return True

    def _has_room(self, queue: str, number: int) -> bool:
        room = self._rooms.get(queue)
        return room is not None and room.left >= number and time.monotonic() < room.until

    def _counted(
        self, connection: Any, queue: str, limit: Limit, number: int, flush: Callable[[], object]
    ) -> _Room:
        until = time.monotonic() + FRESH
        try:
            flush()
            waiting = depth(connection, queue)
        except Exception as error:  # each transport has errors of its own; publishing meets them, too
            logger.debug("celery_poison: the messages in queue %s cannot be counted: %s", queue, error)
            return _Room(sys.maxsize, until)
        if limit.is_near(waiting + number):
            self._filling(queue, waiting, limit.most)
        room = limit.most - waiting
        if room < number and limit.discards_old:
            some = max(number - room, min(limit.most // 100, MOST))
            room += self._discard(connection, queue, min(some, waiting))
            room = max(room, number)  # what could not go stays: the newest are not refused for it
        if room < number:
            raise QueueFull(queue, waiting, limit.most, number)
        return _Room(max(number, room // TENTH), until)


def limits_of(app: Celery) -> LimitsExtension | None:
    """Return the limits of an app; None where celery_poison is not installed on it."""
    plugin = vars(app).get("_poison")  # of a proxy, too
    found = plugin.extensions.all if plugin is not None else ()
    return next((each for each in found if isinstance(each, LimitsExtension)), None)


def flush(producer: Any) -> None:
    """Have the broker take what was published on this channel before another one counts it."""
    broker_of(producer.connection).flush(producer.channel)


# --- a group as a whole ---------------------------------------------------------------------------------


def watch_groups() -> None:
    """Have groups and chords look for room first; done once in a process."""
    if getattr(group.apply_async, "looks", False) or not hooks.fits(hooks.Area.OUTBOX):
        return
    publish, run = group.apply_async, _chord.run

    @wraps(publish)
    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        return _whole(self.app, [self], options, partial(publish, self, *args, **options))

    @wraps(run)
    def run_chord(self: Any, header: Any, body: Any, *args: Any, **options: Any) -> Any:
        app = options.get("app") or self.app
        return _whole(app, [header], options, partial(run, self, header, body, *args, **options))

    apply_async.looks = True  # type: ignore[attr-defined]
    group.apply_async, _chord.run = apply_async, run_chord


def _whole(
    app: Celery, signatures: Iterable[Any], options: Mapping[str, Any], publish: Callable[[], Any]
) -> Any:
    """Publish what there is room for.

    Raises:
        QueueFull: there is none for all of it; nothing was sent.
    """
    limits = limits_of(app)
    if limits is None or not limits.are_set() or captured_by.get() or _is_exempt_here(app):
        return publish()
    if app.conf.task_always_eager:
        return publish()
    wanted = Counter[str]()
    for signature in _first_ones(signatures, app):
        wanted.update(_queues(limits, app, signature, options))
    if any(limits.limit(queue) for queue in wanted):
        with app.producer_or_acquire(options.get("producer")) as producer:
            limits.take(producer.connection, wanted, partial(flush, producer))
    with exempt():
        return publish()


def _first_ones(signatures: Iterable[Any], app: Celery) -> Iterator[Any]:
    """Yield the signatures that are published at once: of a chain the first, of a chord the header's."""
    for each in signatures:
        signature = maybe_signature(each, app=app)
        if isinstance(signature, group):
            yield from _first_ones(signature.tasks, app)
        elif isinstance(signature, _chord):
            header = signature.tasks
            yield from _first_ones(header.tasks if isinstance(header, group) else header, app)
        elif isinstance(signature, _chain):
            yield from _first_ones(signature.tasks[:1], app)
        else:
            yield signature


def _queues(
    limits: LimitsExtension, app: Celery, signature: Any, options: Mapping[str, Any]
) -> Iterable[str]:
    given = {**signature.options, **options}
    if limits.host.taker(signature.task, given.get("outbox")) is not None:
        return []  # the outbox knows limits by itself
    task = app._tasks.get(signature.task)
    given = {**(task._get_exec_options() if task else {}), **given}
    address = {name: given[name] for name in _ADDRESS if given.get(name) is not None}
    routed = app.amqp.router.route(address, signature.task, signature.args, signature.kwargs, task)
    return limits.queues_of(routed)


def _is_exempt(app: Celery, message: Any) -> bool:
    """Whether a message takes the place of one that was accepted: it never fails for a limit (MSG-3).

    That is a retry, and what a worker sends after a task's end: the next of its chain, its callbacks, the
    body of its chord. Of an unguarded task nobody can tell that from what its body sends.
    """
    body = message.body
    return _is_exempt_here(app) or bool(
        message.headers.get("retries") or (isinstance(body, dict) and body.get("retries"))
    )


def _is_exempt_here(app: Celery) -> bool:
    """Whether everything that is published at this moment is exempt."""
    here = limited.get()
    return not here if here is not None else app.current_worker_task is not None
