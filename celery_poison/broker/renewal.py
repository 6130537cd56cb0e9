"""Keeps what this worker holds its own, and tells the broker what it has not heard yet."""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery_poison.broker.held import AWAY, Holdings
from celery_poison.forking import no_fork


class Renewal:
    """Keeps the visibility timeout away from what is held; flushes what Redis has not heard (NEW-9, TP1-8).

    In a thread of its own: the event loop is blocked by a task under solo, and a broker that does not answer
    must not keep the heartbeat waiting.

    Args:
        holdings: of this process.
        interval: seconds between two rounds at most. A quarter of the visibility timeout, if less.
        complain: is told what went wrong; the next round tries again.
    """

    def __init__(self, holdings: Holdings, interval: float, complain: Callable[[Exception], None]) -> None:
        self._holdings = holdings
        self._interval = interval
        self._complain = complain
        self._due = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; it ends with the process, because running tasks outlast the consumer's shutdown."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-renewal", daemon=True)
            self._thread.start()

    def soon(self) -> None:
        """Let the next round begin at once: there is a new connection."""
        self._due.set()

    def _work(self) -> None:
        while True:
            self._due.wait(self.interval)
            self._due.clear()
            with no_fork():
                self.round()

    @property
    def interval(self) -> float:
        """Seconds until the next round."""
        return max(0.05, min(self._interval, self._holdings.visibility_timeout / 4))

    def round(self) -> None:
        """Renew everything that is held at this moment, and tell Redis what it has not heard."""
        for held in self._holdings.all():
            for step in (held.flush, held.renew):
                try:
                    step()
                except AWAY:
                    continue  # a log line of its own tells of it; the next round tries again
                except Exception as error:
                    self._complain(error)
