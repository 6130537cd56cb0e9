"""The thread that talks to the ledger, so that the event loop never waits for Redis."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable, PoisonError
from celery_poison.forking import no_fork

logger = get_logger(__name__)

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
#: Items that are done together at most.
TOGETHER = 100


class Retry(Exception):
    """Raised by a job that wants to be run again after ``pause`` seconds."""

    def __init__(self, pause: float) -> None:
        super().__init__(pause)
        self.pause = pause


class _Due(NamedTuple):
    at: float
    number: int
    job: Callable[..., Any]
    unavailable: Callable[[], bool] | None
    pause: float
    item: Any = None


class Background:
    """Does jobs one after the other, each when it is due.

    Args:
        complain: called with an error for every job that Redis failed.
    """

    def __init__(self, complain: Callable[[Exception], None]) -> None:
        self._complain = complain
        self._due: list[_Due] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._busy = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-background", daemon=True)
            self._thread.start()

    def do(self, job: Callable[[], Any], unavailable: Callable[[], bool] | None = None) -> None:
        """Do ``job`` in the background thread.

        Args:
            unavailable: asked when Redis is away, or the job fails otherwise; False gives the job up, True
                (and no function at all) tries again after a growing pause: a message may depend on it.
        """
        self._put(0.0, job, unavailable, FIRST_PAUSE)

    def do_together(
        self,
        job: Callable[[list[Any]], list[Exception | None]],
        item: Any,
        unavailable: Callable[[], bool] | None = None,
    ) -> None:
        """Do ``job`` in the background thread with ``item``, and with those behind it for the same job.

        Args:
            job: is given at most ``TOGETHER`` items, and returns for each of them None or an error; it raises
                only before it has done anything.
        """
        self._put(0.0, job, unavailable, FIRST_PAUSE, item)

    def _put(self, after: float, job: Any, unavailable: Any, pause: float, item: Any = None) -> None:
        with self._changed:
            entry = _Due(time.monotonic() + after, next(self._numbers), job, unavailable, pause, item)
            heapq.heappush(self._due, entry)
            self._changed.notify_all()

    def _work(self) -> None:
        while not self._stopping:
            with self._changed:
                wait = self._due[0].at - time.monotonic() if self._due else 1.0
                if wait > 0:
                    self._changed.wait(min(wait, 1.0))
                    continue
                entries = self._next()
                self._busy = True
            self._attempt(entries)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> list[_Due]:
        """Take the next job that is due, and with it its neighbours that can be done together with it."""
        entries = [heapq.heappop(self._due)]
        if entries[0].item is not None:
            while len(entries) < TOGETHER and self._is_due() and self._due[0].job == entries[0].job:
                entries.append(heapq.heappop(self._due))
        return entries

    def _attempt(self, entries: list[_Due]) -> None:
        job, items = entries[0].job, [entry.item for entry in entries]
        errors: list[Exception | None] = [None]
        try:
            with no_fork():
                if items == [None]:
                    job()
                else:
                    errors = job(items)
        except Exception as error:
            if len(entries) > 1 and not isinstance(error, LedgerUnavailable):
                for entry in entries:  # what is wrong with one must not hold up the others
                    self._attempt([entry])
                return
            errors = [error] * len(entries)
        for entry, failed in zip(entries, errors, strict=True):
            if failed is not None:
                self._try_again(entry, failed)

    def _try_again(self, entry: _Due, error: Exception) -> None:
        if isinstance(error, Retry):
            self._put(error.pause, entry.job, entry.unavailable, FIRST_PAUSE, entry.item)
            return
        is_away = isinstance(error, LedgerUnavailable)
        if not is_away and entry.pause == FIRST_PAUSE:
            logger.error("celery_poison: a job for the ledger failed", exc_info=error)
        self._complain(error)
        if not is_away and isinstance(error, PoisonError):
            return  # it was refused, and would be again
        if entry.unavailable is None or entry.unavailable():
            self._put(
                entry.pause, entry.job, entry.unavailable, min(2 * entry.pause, LONGEST_PAUSE), entry.item
            )

    def finish(self, patience: float) -> bool:
        """Wait until no job is due any more, at most ``patience`` seconds; stop the thread."""
        deadline = time.monotonic() + patience
        with self._changed:
            while (self._busy or self._is_due()) and time.monotonic() < deadline:
                self._changed.wait(0.05)
            self._stopping = True
            self._changed.notify_all()
            return not (self._busy or self._is_due())

    def _is_due(self) -> bool:
        return bool(self._due) and self._due[0].at <= time.monotonic()
