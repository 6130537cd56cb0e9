"""The thread that talks to the ledger, so that the event loop never waits for Redis."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from celery.utils.log import get_logger

from celery_poison.errors import LedgerUnavailable, PoisonError
from celery_poison.forking import no_fork

logger = get_logger(__name__)

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


class Retry(Exception):
    """Raised by a job that wants to be run again after ``pause`` seconds."""

    def __init__(self, pause: float) -> None:
        super().__init__(pause)
        self.pause = pause


class Background:
    """Does jobs one after the other, each when it is due.

    Args:
        complain: called with an error for every job that Redis failed.
    """

    def __init__(self, complain: Callable[[Exception], None]) -> None:
        self._complain = complain
        self._due: list[tuple[float, int, Callable[[], None], Callable[[], bool] | None, float]] = []
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

    def _put(self, after: float, job: Any, unavailable: Any, pause: float) -> None:
        with self._changed:
            entry = (time.monotonic() + after, next(self._numbers), job, unavailable, pause)
            heapq.heappush(self._due, entry)
            self._changed.notify_all()

    def _work(self) -> None:
        while not self._stopping:
            with self._changed:
                wait = self._due[0][0] - time.monotonic() if self._due else 1.0
                if wait > 0:
                    self._changed.wait(min(wait, 1.0))
                    continue
                _, _, job, unavailable, pause = heapq.heappop(self._due)
                self._busy = True
            self._attempt(job, unavailable, pause)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _attempt(self, job: Any, unavailable: Any, pause: float) -> None:
        try:
            with no_fork():
                job()
        except Retry as again:
            self._put(again.pause, job, unavailable, FIRST_PAUSE)
        except Exception as error:
            is_away = isinstance(error, LedgerUnavailable)
            if not is_away and pause == FIRST_PAUSE:
                logger.exception("celery_poison: a job for the ledger failed")
            self._complain(error)
            if not is_away and isinstance(error, PoisonError):
                return  # it was refused, and would be again
            if unavailable is None or unavailable():
                self._put(pause, job, unavailable, min(2 * pause, LONGEST_PAUSE))

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
        return bool(self._due) and self._due[0][0] <= time.monotonic()
