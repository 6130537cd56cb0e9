"""What one process holds of all brokers that do not know that themselves: a book for each.

Redis is such a broker; one that returns what a lost connection held needs no book.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, TypeVar, cast

#: Returns the delivery tags of what has begun, or whose fate is being decided: it is not put back.
InUse = Callable[[], set[str]]


class BookOfBroker(Protocol):
    """What is asked of one book by whoever does not know its kind of broker; any thread may.

    Attributes:
        away: what ``flush`` and ``renew`` raise while the broker is away; the next round tries again.
    """

    away: ClassVar[tuple[type[Exception], ...]]

    @property
    def owes_acknowledgements(self) -> bool:
        """Whether the broker has not heard of an acknowledgement for longer than it takes."""

    def gather(self) -> None:
        """Tell the broker nothing before :meth:`tell`: many go back in one exchange."""

    def tell(self) -> None:
        """Tell the broker what was gathered."""

    def flush(self) -> None:
        """Send the broker everything that it has not heard yet, and put back what no process works on."""

    def renew(self) -> None:
        """Let the visibility timeout of everything that is held begin anew."""

    def leave_for_good(self) -> bool:
        """Put back everything; return whether the broker has heard it all."""

    def close(self) -> None:
        """Close every connection of it."""


B = TypeVar("B", bound=BookOfBroker)


class Books:
    """Everything that one process holds, by broker.

    Args:
        in_use: is asked before anything goes back that was received.
        before_return: takes a channel that closes, before what it holds goes back: from now on nothing
            of that may begin.
        longest_wait: seconds for which a channel may wait for a message in one go: an event loop that waits
            for longer is taken for one that stands.
    """

    def __init__(
        self,
        in_use: InUse = set,
        before_return: Callable[[Any], object] = lambda _: None,
        longest_wait: float = math.inf,
    ) -> None:
        self._in_use, self.longest_wait = in_use, longest_wait
        self.before_return = before_return
        self._by_broker: dict[tuple[str, ...], BookOfBroker] = {}
        self._lock = threading.Lock()
        #: Seconds of the shortest visibility timeout.
        self.visibility_timeout = float("inf")

    def of(self, key: tuple[str, ...], make: Callable[[InUse], B], visibility_timeout: float) -> B:
        """Return the book of one broker; it is made when it is asked for first.

        Args:
            key: of that broker.
            visibility_timeout: its, in seconds.
        """
        with self._lock:
            book = self._by_broker.get(key)
            if book is None:
                book = self._by_broker[key] = make(self._in_use)
            self.visibility_timeout = min(self.visibility_timeout, visibility_timeout)
        return cast("B", book)

    def all(self) -> list[BookOfBroker]:
        with self._lock:
            return list(self._by_broker.values())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Tell each broker in one exchange what is put back meanwhile."""
        books = self.all()
        for book in books:
            book.gather()
        try:
            yield
        finally:
            for book in books:
                book.tell()

    @property
    def owes_acknowledgements(self) -> bool:
        """Whether a broker has not heard of an acknowledgement for longer than it takes."""
        return any(book.owes_acknowledgements for book in self.all())

    def leave_for_good(self) -> bool:
        """Put everything back; return whether every broker has heard it."""
        heard = [book.leave_for_good() for book in self.all()]
        return all(heard)

    def close(self) -> None:
        """Close every connection; what Redis has not heard so far it does not hear from here.

        Connections that publish, in a pool of the app's, may outlive their worker, and know it by this.
        """
        for book in self.all():
            book.close()
        self._by_broker, self._in_use, self.before_return = {}, set, lambda _: None
