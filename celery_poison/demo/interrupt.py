"""Ctrl-C and SIGTERM as a flag that is looked at between two steps.

An exception thrown into the middle of starting a process would leave that process to nobody.
"""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Somebody asked the demo to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interruptions:
    """While entered, the signals that ask to stop are remembered; a second one changes nothing."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._former: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Raise Interrupted if somebody asked."""
        if self._number is not None:
            raise Interrupted(self._number)

    def pause(self, seconds: float) -> None:
        """Sleep, and then check."""
        time.sleep(seconds)
        self.check()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._number = self._number or number

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
