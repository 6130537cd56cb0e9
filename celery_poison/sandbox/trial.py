"""One suspect that is tried, and its time limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo

if TYPE_CHECKING:
    from celery_poison.worker.request import GuardedRequest

_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Trial:
    """One suspect, and who is to hear of it: what Celery hands to a pool.

    Attributes:
        soft, hard: time limits, in seconds.
        begun: whether the cell has begun with it.
        overdue: its hard limit is over.
        terminated_by: the signal by which somebody wants it to end; 0: nobody does.
    """

    request: GuardedRequest
    arguments: tuple[Any, ...]
    accepted: Callable[[int, float], Any]
    timed_out: Callable[[bool, float], Any]
    ended: Callable[[Any], Any]
    failed: Callable[[ExceptionInfo], Any]
    soft: float | None
    hard: float | None
    begun: bool = False
    overdue: bool = False
    terminated_by: int = 0
    _soft_at: float = _NEVER
    _hard_at: float = _NEVER

    def begin(self) -> None:
        """Start the clock."""
        self.begun, now = True, time.monotonic()
        self._soft_at = now + self.soft if self.soft else _NEVER
        self._hard_at = now + self.hard if self.hard else _NEVER

    def pause(self) -> float:
        """Return the seconds until the next limit."""
        return min(self._soft_at, self._hard_at) - time.monotonic()

    def is_over(self) -> bool:
        """Whether the hard limit is over."""
        if time.monotonic() >= self._hard_at:
            self.overdue, self._hard_at = True, _NEVER
        return self.overdue

    def is_soft_over(self) -> bool:
        """Whether the soft limit is over; told once."""
        if time.monotonic() < self._soft_at:
            return False
        self._soft_at = _NEVER
        return True
