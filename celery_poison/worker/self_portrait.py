"""A worker's portrait of itself, drawn in the pulse's thread; ``celery_poison.portrait`` judges (NEW-25)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from celery.utils.log import get_logger
from celery.worker.state import active_requests, all_total_count, reserved_requests

from celery_poison.cells.trial import PoolFacts
from celery_poison.portrait import Condition, Portrait, explain, judge
from celery_poison.upstream import hooks
from celery_poison.worker.delays import fills
from celery_poison.worker.inflight import unchanged
from celery_poison.worker.site import Site
from celery_poison.worker.threads import LoopClock, start_real_thread

logger = get_logger("celery_poison")

#: Pools for whose slots the event loop waits: it stands by right meanwhile.
GREEN = ("gevent", "eventlet")


class Ages:
    """The age of each request, since the first look that saw it; by the monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def look(self, requests: Iterable[Any]) -> list[tuple[Any, float]]:
        """Return these requests and the seconds since each was among them first; forget the others."""
        now, before = monotonic(), self._since
        self._since = WeakKeyDictionary({each: before.get(each, now) for each in requests})
        return [(each, now - since) for each, since in self._since.items()]


class Children:
    """The pool processes of one worker, and for how long none has come up; looked at each second."""

    def __init__(self, app: Any, pool: PoolFacts) -> None:
        self._has_any = not pool.contained
        self._limit = float(app.conf.worker_proc_alive_timeout or 0)
        self._begun = -1
        self._up_at = monotonic()

    def look(self, pool: Any) -> tuple[int, int, float]:
        """Return the number of processes up, the number there should be, and the seconds without any.

        The seconds count beyond Celery's own patience, and anew whenever a process is up or a task begins.
        """
        inner = getattr(pool, "_pool", None)
        if not self._has_any or not hooks.fits(hooks.Area.PORTRAIT):
            return 0, 0, 0.0
        expected = getattr(inner, "_processes", 0)
        # That one is forked says little: in a storm of forks there is nearly always one.
        ready = getattr(inner, "_all_inqueues", None)
        up = len(getattr(inner, "_pool", ()) if ready is None else ready)
        now, begun = monotonic(), all_total_count[0]
        if up or begun != self._begun:  # one that serves a single task is hardly ever seen
            self._begun, self._up_at = begun, now
        return up, expected, max(0.0, now - self._up_at - self._limit)


class SelfPortrait:
    """The portrait of one worker: its pulse draws a new one each second, its heartbeat carries the last.

    Args:
        clock: of its event loop.
    """

    _last: Portrait | None = None

    def __init__(self, site: Site, pool: PoolFacts, clock: LoopClock) -> None:
        self._site, self._clock, self._pool = site, clock, pool
        self._children = Children(site.app, pool)
        self._running, self._waiting = Ages(), Ages()
        self._condition = Condition.WORKING

    def last(self) -> str:
        """Return the last portrait, encoded for a heartbeat."""
        return (self._last or self._see()).encode()

    def draw(self) -> Portrait:
        """Return the worker as of this moment; log a change of its condition."""
        seen = self._last = self._see()
        before, self._condition = self._condition, judge(seen)
        if self._condition is not before:
            # In a thread of its own: what holds the loop may be the lock of a log's handler.
            start_real_thread(partial(_log, seen, self._condition, before), "poison-log")
        return seen

    def _see(self) -> Portrait:
        running = unchanged(lambda: set(active_requests))
        waiting = unchanged(lambda: set(reserved_requests)) - running
        ages = [
            (each, age) for each, age in self._running.look(running) if not getattr(each, "is_in_cell", False)
        ]
        up, expected, childless = self._children.look(getattr(self._site.loop.consumer, "pool", None))
        ago, away = self._clock.turned_ago(), self._clock.away_for()
        loop = self._site.loop
        tasks = getattr(loop.consumer, "task_consumer", None)  # none before the first, and while it leaves
        unanswered = 0.0 if ago is None else getattr(getattr(tasks, "channel", None), "unanswered_for", 0.0)
        delayed, filled = fills(loop.consumer) if loop.is_filled_by_delays else (0, 0)
        return Portrait(
            patience=self._patience(),
            loop_turned_ago=None if ago is None else round(ago, 3),
            tasks_stop_loop=self._pool.name == "solo" or self._waits_for_slot(),
            unanswered=round(unanswered, 3),
            broker_away=None if away is None else round(away, 3),
            children=up,
            children_expected=expected,
            childless=round(childless, 3),
            slots=self._pool.slots,
            slots_busy=len(ages),
            slots_past=sum(age > self._most(each) for each, age in ages),
            oldest_waiting=round(max((age for _, age in self._waiting.look(waiting)), default=0.0), 3),
            delayed=delayed,
            queues_filled=filled,
        )

    def _waits_for_slot(self) -> bool:
        return self._pool.name in GREEN and self._site.loop.handing > 0

    def _patience(self) -> float:
        return self._site.settings.stuck_after

    def _most(self, request: Any) -> float:
        """Return the age at which a request is far past its hard time limit, in seconds."""
        limit = request.time_limits[0] or request.task.time_limit or self._pool.hard
        return max(2 * limit, limit + self._patience()) if limit else float("inf")


def _log(seen: Portrait, condition: Condition, before: Condition) -> None:
    """Log a change of condition, by one template for each: Sentry and others group by that."""
    extra = {"condition": str(condition)}
    if condition is Condition.WORKING:
        logger.warning(f"celery_poison: this worker works again; it was: {before}", extra=extra)
    else:
        sentence = f"celery_poison: this worker does not work ({condition}): %s"
        logger.error(sentence, explain(seen, condition), extra=extra)
