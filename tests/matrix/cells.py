"""The axes of the kill matrix, which cells can occur, and which of them run every time."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from celery.result import AsyncResult

from tests.apps.harness import Fleet
from tests.apps.tasks import KillsItsReader

BROKERS = ("redis", "rabbitmq")
POOLS = ("prefork", "threads", "solo")
WORKERS = (1, 3)

#: Ways of dying, and what the quarantine should give as the cause. The last death is that of a process
#: which runs nothing but the task, and whose parent sees the end of it: a pool process or a cell.
WAYS: dict[str, frozenset[str]] = {
    "kill_child": frozenset({"signal:9"}),
    "segfault": frozenset({"signal:11"}),
    "abort": frozenset({"signal:6"}),
    "os_exit": frozenset({"exit:7"}),
    "memory_error": frozenset({"memory_error"}),
    "system_exit": frozenset({"system_exit", "exit:3"}),
    "hard_limit": frozenset({"time_limit"}),
    "kill_group": frozenset({"signal:9"}),
    "kill_main": frozenset({"signal:9"}),
    "receive": frozenset({"receive"}),
}
#: These end the process that runs the task, whatever it is: a pool child, or the worker.
ENDS_ITS_PROCESS = frozenset({"kill_child", "segfault", "abort", "os_exit"})
#: These are raised in the task: whether they end a process is Celery's doing.
RAISES = frozenset({"memory_error", "system_exit"})


class Cell(NamedTuple):
    broker: str
    pool: str
    way: str
    workers: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.pool}-{self.way}-{self.workers}w"

    @property
    def slots(self) -> int:
        """Tasks that one worker runs at a time."""
        return 1 if self.pool == "solo" else 2

    @property
    def worker_deaths(self) -> range:
        """How many deaths of whole workers two runs of the poison may cost: the second is in a cell."""
        if self.way == "receive":
            return range(2, 3)
        if self.way in RAISES:
            return range(2)
        survives = self.way == "hard_limit" or (self.pool == "prefork" and self.way in ENDS_ITS_PROCESS)
        return range(1) if survives else range(1, 2)

    @property
    def causes(self) -> frozenset[str]:
        return WAYS[self.way]

    @property
    def task(self) -> str:
        return "unpickled" if self.way == "receive" else self.way

    def send_poison(self, fleet: Fleet) -> AsyncResult:
        if self.way == "receive":
            return fleet.send(self.task, KillsItsReader(), serializer="pickle")
        return fleet.send(self.task)


def can_occur(cell: Cell) -> bool:
    """Threads and solo have no child to kill and no hard time limit.

    There, SIGKILL of the process that runs the task *is* SIGKILL of the main process, which has a
    column of its own; and Celery does not enforce `time_limit` without a process to end.
    """
    return cell.pool == "prefork" or cell.way not in ("kill_child", "hard_limit")


CELLS = [
    cell
    for broker, pool, way, workers in product(BROKERS, POOLS, WAYS, WORKERS)
    if can_occur(cell := Cell(broker, pool, way, workers))
]

#: Touches every value of every axis; runs in the ordinary test command.
DIAGONAL = [
    Cell("redis", "prefork", "kill_child", 1),
    Cell("rabbitmq", "prefork", "segfault", 3),
    Cell("rabbitmq", "threads", "abort", 1),
    Cell("redis", "solo", "os_exit", 3),
    Cell("rabbitmq", "prefork", "memory_error", 1),
    Cell("redis", "threads", "system_exit", 1),
    Cell("redis", "prefork", "hard_limit", 3),
    Cell("rabbitmq", "prefork", "kill_group", 3),
    Cell("redis", "prefork", "kill_main", 3),
    Cell("redis", "threads", "receive", 3),
]
