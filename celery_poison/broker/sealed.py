"""A message that is not opened before it was let in: a decompression bomb must not go off too early."""

from __future__ import annotations

from typing import Any

from kombu.compression import decompress
from kombu.exceptions import DecodeError
from kombu.message import Message

#: Content type under which is kept what was in a queue on Redis, and was no message that kombu could read.
ITEM = "application/x-celery-poison-item"


class Sealed(Message):
    """A message whose body stays as it was received until it is read.

    Attributes:
        received: the body as received.
        queue_name: the queue it was consumed from, if known.
        origin: what tells it from every other publish; empty where its transport has nothing.
        poison: the worker's notes about this delivery.
        to_front: whether it goes to the front of its queue when it is put back.
        is_blameless: whether it is put back through no failure of its own.
        went_back: whether it had been put back when it was done: a copy of it comes. None:
            unknown.
    """

    queue_name: str | None = None
    origin = ""
    poison: Any = None
    to_front = False
    is_blameless = False
    went_back: bool | None = None
    _body: Any = None

    def __init__(self, body: Any = None, headers: Any = None, **kwargs: Any) -> None:
        self._compression = headers.get("compression") if isinstance(headers, dict) else None
        if not self._compression:
            super().__init__(body=body, headers=headers, **kwargs)
        else:
            bare = {name: value for name, value in headers.items() if name != "compression"}
            super().__init__(body=body, headers=bare, **kwargs)
            self.headers = headers
        self.received = self._body

    @property
    def is_mine(self) -> bool:
        """Whether it may begin: it was not put back, as it is when its connection is lost."""
        return True

    def mark_done(self) -> None:
        """Its task has ended, and it will be acknowledged: Celery may do that later, when it is connected."""

    def mark_stored(self) -> None:
        """Note that the message is on record elsewhere, and will be acknowledged.

        It goes back to a Redis that forgets both.
        """

    @property
    def sealed(self) -> bool:
        """Whether the body is still compressed."""
        return bool(self._compression)

    @property
    def body(self) -> Any:
        if self._compression:
            method, self._compression = self._compression, None
            try:
                self._body = decompress(self._body, method)
            except MemoryError:
                raise
            except Exception as error:  # an OSError of bz2's would be taken for a lost connection
                raise DecodeError(f"cannot be unpacked ({method}): {error!r}") from error
        return self._body

    @body.setter
    def body(self, value: Any) -> None:
        self._body = value
