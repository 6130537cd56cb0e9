"""The open Redis channels of one worker process, known to other threads."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakSet


class Channels:
    """All of one process's channels on one broker connection class."""

    def __init__(self) -> None:
        self._open: WeakSet[Any] = WeakSet()

    def add(self, channel: Any) -> None:
        self._open.add(channel)

    def discard(self, channel: Any) -> None:
        self._open.discard(channel)

    def snapshot(self) -> list[Any]:
        """Return them, from whatever thread."""
        while True:
            with suppress(RuntimeError):  # changed by another thread meanwhile
                return list(self._open)
