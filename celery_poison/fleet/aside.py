"""Work of the active monitor that may have to wait, in threads of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from celery.utils.log import get_logger

from celery_poison.errors import Fenced, LedgerUnavailable

logger = get_logger("celery_poison")


class Aside:
    """Works in a thread of its own: a broker, a disk or a receiver that hangs delays nothing else.

    Args:
        name: of the thread.
        pause: seconds between two beginnings, at least.
    """

    def __init__(self, name: str, pause: float = 0.0) -> None:
        self._name = name
        self._pause = pause
        self._not_before = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def do(self, work: Callable[[], object]) -> None:
        """Begin it, unless it is too early or the last one has not ended; the caller asks again."""
        now = time.monotonic()
        if now < self._not_before or self.is_busy:
            return
        self._not_before = now + self._pause

        def attempt() -> None:
            try:
                work()
            except (LedgerUnavailable, Fenced) as error:
                logger.debug("celery_poison: %s stands still: %s", self._name, error)
            except Exception:
                logger.exception("celery_poison: %s failed; it is tried again", self._name)

        self._thread = threading.Thread(target=attempt, name=self._name, daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for what was begun, at most so many seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
