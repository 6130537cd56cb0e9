"""What a worker tells with each heartbeat for the day on which it dies as a whole.

Nobody is left then to say how much memory was in use, how much was allowed, or that it had been asked to
leave.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from celery_poison.procfs import MemoryGroup
from celery_poison.worker.lease import clock


class Vitals:
    """The vital signs of one worker, told by its main process.

    Args:
        complain: is told of an error here; a heartbeat does without them then.
    """

    def __init__(self, complain: Callable[[Exception], object]) -> None:
        self._complain = complain
        self._group = MemoryGroup()
        self._limit: dict[str, Any] = {
            "limit_kb": self._group.allowed() // 1024,
            "limit_of": "machine" if self._group.limit() is None else "group",
        }
        self._asked_by = ""
        self._asked_at: float | None = None

    def asked_to_leave(self, by: str = "") -> None:
        """Note that the worker was asked to leave, by a signal of that name; for signal handlers too."""
        if self._asked_at is None:
            self._asked_by, self._asked_at = by, clock()

    def tell(self) -> str:
        """Return them as JSON, see docs/keys.md; never raises."""
        try:
            told = {**self._limit, "used_kb": self._group.used() // 1024}
            if self._asked_at is not None:
                told.update(asked=self._asked_by, asked_ms=int((clock() - self._asked_at) * 1000))
            return json.dumps(told, separators=(",", ":"))
        except Exception as error:
            self._complain(error)
            return ""
