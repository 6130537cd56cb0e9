"""The thread that keeps what a worker holds, and repeats what its brokers have not heard."""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery_poison.basics.forking import no_fork
from celery_poison.broker.books import Books


class Renewal:
    """Keeps the visibility timeout away from what is held; flushes what was not heard (NEW-9, TP1-8).

    In a thread of its own: the event loop is blocked by a task under solo, and a broker that does not answer
    must not keep the heartbeat waiting.

    Args:
        books: of this process.
        interval: seconds between two rounds at most. A quarter of the visibility timeout, if less.
        complain: takes an error; the next round tries again.
        look: called first in each round: what is given back need not be renewed.
    """

    def __init__(
        self,
        books: Books,
        interval: float,
        complain: Callable[[Exception], None],
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._look = look
        self._books = books
        self._interval = interval
        self._complain = complain
        self._due = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin a round at once, since there is a new connection, and go on until :meth:`end`.

        Running tasks outlast the consumer's shutdown.
        """
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poison-renewal", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._is_over:
            self._due.wait(self.interval)
            self._due.clear()
            if not self._is_over:
                with no_fork():
                    self.round()

    def end(self, patience: float) -> None:
        """Begin no more rounds; wait at most so many seconds for the one that goes on."""
        self._is_over = True
        self._due.set()
        if self._thread is not None:
            self._thread.join(patience)

    @property
    def interval(self) -> float:
        """Seconds until the next round."""
        return max(0.05, min(self._interval, self._books.visibility_timeout / 4))

    def round(self) -> None:
        """Renew everything that is held at this moment, and tell each broker what it has not heard."""
        books = self._books.all()
        away = tuple(error for book in books for error in book.away)
        for step in [self._look, *(step for book in books for step in (book.flush, book.renew))]:
            try:
                step()
            except away:
                continue  # it has a log line of its own; the next round tries again
            except Exception as error:
                self._complain(error)
