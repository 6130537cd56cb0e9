"""What the tasks write down themselves, so that the demo can count without asking the plugin."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import redis

STARTED = "demo:started"
KILLS = "demo:kills"
FINISHED = "demo:finished"
BORN = "demo:born"
REPAIRED = "demo:repaired"


class Tally:
    """Counters in a Redis database of their own.

    Every write waits for its answer: the caller's next line may kill the process. A process has a
    connection of its own, since one that crossed a fork would be shared with the parent.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: dict[int, redis.Redis] = {}

    @property
    def _client(self) -> Any:
        pid = os.getpid()
        if pid not in self._clients:
            self._clients = {pid: redis.Redis.from_url(self._url, decode_responses=True)}
        return self._clients[pid]

    def started(self, n: int) -> None:
        self._client.hincrby(STARTED, str(n), 1)

    def finished(self, n: int) -> None:
        self._client.hincrby(FINISHED, str(n), 1)

    def about_to_kill(self, name: str) -> None:
        self._client.hincrby(KILLS, name, 1)

    def pool_process_born(self, worker_pid: int) -> None:
        self._client.hincrby(BORN, str(worker_pid), 1)

    def repair(self, name: str) -> None:
        """From now on this poison does no harm: somebody repaired its task."""
        self._client.sadd(REPAIRED, name)

    def is_repaired(self, name: str) -> bool:
        return bool(self._client.sismember(REPAIRED, name))

    def starts(self) -> dict[int, int]:
        """How often each healthy task was started, by its number."""
        return {int(n): int(times) for n, times in self._client.hgetall(STARTED).items()}

    def finished_count(self) -> int:
        return int(self._client.hlen(FINISHED))

    def kills(self, names: Iterable[str]) -> dict[str, int]:
        """How often each poison did what it does."""
        found = self._client.hgetall(KILLS)
        return {name: int(found.get(name, 0)) for name in names}

    def pool_deaths(self, slots: int) -> int:
        """How many pool processes were replaced in workers that went on living, of ``slots`` each."""
        born = map(int, self._client.hvals(BORN))
        return sum(max(0, lives - slots) for lives in born)
