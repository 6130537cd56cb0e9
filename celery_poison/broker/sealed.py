"""A message that is not opened before it was let in: a decompression bomb must not go off too early."""

from __future__ import annotations

from typing import Any

from kombu.compression import decompress
from kombu.message import Message


class Sealed(Message):
    """A message whose body stays as it was received until somebody reads it.

    Attributes:
        received: the body as received.
        queue_name: the queue it was consumed from, if known.
        poison: the worker's notes about this delivery.
        went_back: whether it had been put back when it was done: a copy of it comes. None: nobody here can
            know.
    """

    queue_name: str | None = None
    poison: Any = None
    to_front = False
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

    def is_done(self) -> None:
        """Its task has ended, and it will be acknowledged: Celery may do that later, when it is connected."""

    def has_moved(self) -> None:
        """It is on record elsewhere, and will be acknowledged: a Redis that forgets both gets it back."""

    @property
    def sealed(self) -> bool:
        """Whether the body is still compressed."""
        return bool(self._compression)

    @property
    def body(self) -> Any:
        if self._compression:
            method, self._compression = self._compression, None
            self._body = decompress(self._body, method)
        return self._body

    @body.setter
    def body(self, value: Any) -> None:
        self._body = value
