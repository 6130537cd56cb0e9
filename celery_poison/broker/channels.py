"""The open Redis channels of one worker process, known to other threads."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakSet


class Channels:
    """All of one process's channels on one broker connection class.

    Attributes:
        lost: the tags of what a closed channel could not put back because Redis was away, the oldest first.
    """

    def __init__(self) -> None:
        self._open: WeakSet[Any] = WeakSet()
        self.lost: list[str] = []

    def add(self, channel: Any) -> None:
        self._open.add(channel)

    def discard(self, channel: Any) -> None:
        self._open.discard(channel)

    def snapshot(self) -> list[Any]:
        """Return them, from whatever thread."""
        while True:
            with suppress(RuntimeError):  # changed by another thread meanwhile
                return list(self._open)
