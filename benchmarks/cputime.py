"""Processor time, as the kernel and Redis account for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

import redis

from celery_poison.basics import procfs

_TICK = os.sysconf("SC_CLK_TCK")


class Cpu(NamedTuple):
    """Seconds of processor time of the three parties to a task."""

    main: float
    children: float
    redis: float

    @property
    def total(self) -> float:
        return sum(self)

    def minus(self, other: Self) -> Cpu:
        return Cpu(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float) -> Cpu:
        return Cpu(*(value * factor for value in self))


def read(main: int, children: Iterable[int], client: redis.Redis) -> Cpu:
    """Return what a worker's main process, its pool and its Redis have used so far."""
    server = client.info("cpu")
    used = float(server["used_cpu_user"]) + float(server["used_cpu_sys"])
    return Cpu(of_process(main), sum(map(of_process, children)), used)


def of_process(pid: int) -> float:
    """Return user and system time of all threads of a process, in seconds."""
    found = procfs.process(pid)
    if found is None:
        raise ProcessLookupError(pid)
    return found.cpu


def of_machine() -> float:
    """Return how many seconds all processors of the machine together have been busy."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[:8])
    return (user + nice + system + irq + softirq + steal) / _TICK
