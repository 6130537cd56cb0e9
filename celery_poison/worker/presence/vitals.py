"""What a worker tells with each heartbeat for the day on which it dies as a whole.

Nobody is left then to say how much memory it had, how much it was allowed, or that it had been asked to
leave.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from celery_poison import machine
from celery_poison.evidence import NEAR
from celery_poison.worker.running.lease import clock
from celery_poison.worker.trial.watcher import MemoryGroup

#: Processes that are told of, the largest first.
TOLD = 32


class Vitals:
    """The vital signs of one worker, told by its main process.

    Args:
        complain: is told of an error here; a heartbeat does without them then.
    """

    def __init__(self, complain: Callable[[Exception], object]) -> None:
        self._complain = complain
        self._pid = os.getpid()
        self._group = MemoryGroup()
        limit = self._group.limit()
        machine_kb = machine.total_kb()
        self._about: dict[str, Any] = {
            "limit_kb": limit // 1024 if limit is not None else machine_kb,
            "limit_of": "group" if limit is not None else "machine",
            "place": machine.place(),
            "began": machine.begun(self._pid),
            "events": self._group.events,
            "counter": machine.counter(self._group.events),
        }
        self._told_near = False
        self._asked_by = ""
        self._asked_at: float | None = None

    def asked_to_leave(self, by: str = "") -> None:
        """Note that the worker was asked to leave, by a signal of that name; for signal handlers too."""
        if self._asked_at is None:
            self._asked_by, self._asked_at = by, clock()

    def tell(self) -> str:
        """Return them as JSON, see docs/keys.md; never raises."""
        try:
            return json.dumps(self._signs(), separators=(",", ":"))
        except Exception as error:
            self._complain(error)
            return ""

    def _signs(self) -> dict[str, Any]:
        used = self._group.used() // 1024
        family = {pid: machine.memory(pid) for pid in machine.family(self._pid)}
        largest = sorted(family, key=lambda pid: family[pid][1], reverse=True)[:TOLD]
        self._told_near = self._is_near(used)
        told = {
            **self._about,
            "used_kb": used,
            "worker_kb": sum(now for now, _ in family.values()),
            "peaks_kb": {pid: family[pid][1] for pid in largest},
            "kills": self._group.kills(),
        }
        if self._asked_at is not None:
            told.update(asked=self._asked_by, asked_ms=int((clock() - self._asked_at) * 1000))
        return told

    @property
    def is_news(self) -> bool:
        """Whether its memory has come near the limit since it was told of: that may be the last occasion."""
        return not self._told_near and self._is_near(self._group.used() // 1024)

    def _is_near(self, used_kb: int) -> bool:
        limit: int = self._about["limit_kb"]
        return 0 < NEAR * limit <= used_kb
