"""What the tasks leave behind, so that a test can count runs without asking the plugin under test."""

from __future__ import annotations

import functools
import json
import os
import time
from collections import Counter
from typing import Any, NamedTuple

import redis

KEY = "marks"
HARMLESS = "POISON_HARMLESS"
GATE = "gate"


class Mark(NamedTuple):
    task: str
    id: str
    pid: int
    ppid: int
    event: str  #: "start" or "end"
    n: Any  #: the task's first argument, None without


class Marks:
    """A list in Redis, in a database of its own."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, decode_responses=True)

    def leave(self, task: str, id: str, event: str, n: Any = None) -> None:
        """Waits for Redis' answer: the next line of the caller may kill the process."""
        self._redis.rpush(KEY, json.dumps(Mark(task, id, os.getpid(), os.getppid(), event, n)))

    def all(self, task: str | None = None, event: str | None = None) -> list[Mark]:
        marks = [Mark(*json.loads(raw)) for raw in self._redis.lrange(KEY, 0, -1)]
        return [m for m in marks if task in (None, m.task) and event in (None, m.event)]

    def count(self, task: str, event: str) -> Counter[Any]:
        """How often, by the task's first argument."""
        return Counter(mark.n for mark in self.all(task, event))

    def repair(self) -> None:
        """From now on every poison does no harm: somebody has repaired the task."""
        self._redis.set(HARMLESS, "1")

    @property
    def repaired(self) -> bool:
        return self._redis.get(HARMLESS) == "1"

    def lock(self, name: str, seconds: float) -> bool:
        """Take a lock that outlives this process; return whether it was free."""
        return bool(self._redis.set(f"lock:{name}", "taken", nx=True, px=int(1000 * seconds)))

    def open_gate(self) -> None:
        """Let everybody pass who waits at it, now and later."""
        self._redis.set(GATE, "open")

    def wait_at_gate(self) -> None:
        while not self._redis.exists(GATE):
            time.sleep(0.05)


@functools.cache
def _of_process(url: str, pid: int) -> Marks:
    return Marks(url)


def marks(url: str) -> Marks:
    """This process's own connection: one that crossed a fork would be shared with the parent."""
    return _of_process(url, os.getpid())
