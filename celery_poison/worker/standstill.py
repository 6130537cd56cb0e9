"""A worker whose event loop stands gives back what has not begun, and begins afresh when it turns (NEW-25).

No monitor gives back messages of a worker that lives, however long its loop stands. Messages that were handed
to the pool stay with the worker: they run, or have run, or only the event loop could tell.

Nothing runs twice. The event loop first notes a message that it hands over, and then looks whether handing
over is still allowed. The thread that gives back first forbids it, and then reads these notes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import Task
from celery.utils.log import get_logger

from celery_poison.cells.trial import PoolFacts
from celery_poison.worker.inflight import InFlight, unchanged
from celery_poison.worker.rejoin import Rejoin, take_back_claims
from celery_poison.worker.self_portrait import GREEN
from celery_poison.worker.site import Site
from celery_poison.worker.threads import start_real_thread

logger = get_logger("celery_poison")


class Standstill:
    """A watch over the event loop of one worker, from a thread beside it."""

    def __init__(self, site: Site, pool: PoolFacts, inflight: InFlight, rejoin: Rejoin) -> None:
        self._site, self._inflight, self._rejoin = site, inflight, rejoin
        self._waits = pool.name in ("solo", *GREEN)
        self._was_seen = False

    def look(self) -> None:
        """Give back messages that have not begun, when the loop stands longer than ``poison_stuck_after``.

        The second look in a row decides: the first may come just after the whole process was stopped.
        """
        if not self._stands():
            self._was_seen = False
        elif not self._was_seen:
            self._was_seen = True
        elif not self._rejoin.is_fenced:  # else all goes back already
            self._give_back()

    def _stands(self) -> bool:
        loop = self._site.loop
        is_in_pool = self._waits and loop.handing > 0
        return (loop.clock.turned_ago() or 0.0) > self._site.settings.stuck_after and not is_in_pool

    def _give_back(self) -> None:
        loop = self._site.loop
        self._rejoin.begin_nothing()
        self._site.background.do(self._take_back_claims)
        goes = self._takes_back()
        channel = loop.consumer.task_consumer.channel
        if (book := getattr(channel, "book", None)) is not None:  # else RabbitMQ misses its heartbeats
            book.leave(channel, self._stays(channel, goes))
        loop.call_in_loop(partial(loop.start_afresh, "its event loop stood"))
        # In a thread of its own: what holds the loop may be the lock of a log's handler.
        start_real_thread(partial(_log, self._site.settings.stuck_after), "poison-log")

    def _takes_back(self) -> set[str]:
        """Take back the requests that wait for a thread of the pool; return their tags."""
        back = [each for each in self._inflight.in_pool() if each._future and each._future.cancel()]
        for each in back:
            self._site.loop.call_in_loop(each.left_queue_of_pool)
        return {_tag(each) for each in back}

    def _stays(self, channel: Any, goes: set[str]) -> set[str]:
        """Return the tags of messages handed to the pool, and of the one that the standing loop is at.

        That one may be why the loop stands: another worker's would stand as well.
        """
        stays = {_tag(each) for each in self._inflight.in_pool()}
        for tag, message in unchanged(lambda: list(channel.qos._delivered.items())):
            # Of a broadcast others have their own. Batches give what they gathered to the pool themselves.
            if message.is_handed or not message.registered or self._has_own_strategy(message):
                stays.add(tag)
        return (stays - goes) | self._inflight.tags_in_use() | {channel.at_hand, *self._inflight.at_hand}

    def _has_own_strategy(self, message: Any) -> bool:
        name = message.headers.get("task")
        task = self._site.app.tasks.get(name) if isinstance(name, str) else None
        return task is not None and task.Strategy != Task.Strategy

    def _take_back_claims(self) -> None:
        """Take back the claims of messages that go back, in the background, after any claim under way.

        Else the copies of these messages would wait for as long as this worker lives.
        """
        if void := self._inflight.forget_let_in():
            take_back_claims(self._site.ledger, void)


def _tag(request: Any) -> str:
    return str(request.message.delivery_tag)


def _log(patience: float) -> None:
    logger.error(
        "celery_poison: the event loop has stood for longer than poison_stuck_after=%s s: messages that have"
        " not begun go back, and run on other workers",
        patience,
    )
