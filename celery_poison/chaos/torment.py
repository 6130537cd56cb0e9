"""Does what the plan says, and records what was done when and to whom."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from celery_poison import procfs
from celery_poison.chaos.load import Load
from celery_poison.chaos.plan import Fault
from celery_poison.chaos.runs import Blow
from celery_poison.chaos.stage import Stage
from celery_poison.testing import Worker

#: Seconds between two faults of one owner: two short ones shall not look like a long one.
REST = 3.0


EVERY_BROKER = ("redis", "sentinel", "rabbitmq")
#: On a Redis that does not fail over by itself as soon as it does not answer.
ONE_REDIS = ("redis", "rabbitmq")
EVERY_POOL = ("prefork", "threads", "gevent", "solo")


#: Is given the torment, the plan's fault and the blow to be filled in, and its own settings by name.
Do = Callable[..., None]


class Kind(NamedTuple):
    """A kind of fault.

    ``owns`` names what no other fault may touch meanwhile, with ``{worker}`` for the number of the one
    it strikes; empty for nothing. ``brokers`` and ``pools``: where there is such a thing.
    """

    do: Do
    owns: str
    brokers: tuple[str, ...]
    pools: tuple[str, ...]


KINDS: dict[str, Kind] = {}


def fault(
    name: str,
    owns: str = "",
    brokers: tuple[str, ...] = EVERY_BROKER,
    pools: tuple[str, ...] = EVERY_POOL,
    **settings: Any,
) -> Callable[[Do], Do]:
    """Enter a function into the list; ``settings`` are further arguments for it."""

    def enter(do: Do) -> Do:
        KINDS[name] = Kind(partial(do, **settings), owns, brokers, pools)
        return do

    return enter


#: Who may not mount a small file system cannot fill one.
NEED_A_DISK = ("disk-full", "redis-full")


def possible(pool: str, broker: str) -> list[str]:
    """Return the names of all faults that there are with such a fleet."""
    return [name for name, kind in KINDS.items() if pool in kind.pools and broker in kind.brokers]


class Torment:
    """Strikes a stage; each fault in a thread of its own, so that they meet.

    Attributes:
        blows: what was done, in the order of its beginnings.
        broken: faults that could not be done, and why.
    """

    def __init__(self, stage: Stage, load: Load, say: Callable[[str], None]) -> None:
        self.stage, self.load, self.say = stage, load, say
        self.plan: list[Fault] = []
        self.blows: list[Blow] = []
        self.broken: list[str] = []
        self._threads: list[threading.Thread] = []
        self._owners: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def play(self, plan: Iterable[Fault], seconds: float) -> None:
        """Strike for so many seconds, and wait until every fault is over."""
        self.plan, began = list(plan), time.monotonic()
        for fault in self.plan:
            self.stage.wait(began + fault.at - time.monotonic())
            if self.stage.stopping.is_set():
                break
            self._strike(fault)
        self.stage.wait(began + seconds - time.monotonic())
        for thread in self._threads:
            thread.join()

    def _strike(self, fault: Fault) -> None:
        thread = threading.Thread(target=self._do, args=(fault,), name=fault.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _do(self, fault: Fault) -> None:
        kind = KINDS[fault.name]
        owned = kind.owns.format(worker=fault.worker)
        with self._owners[owned] if owned else contextlib.nullcontext():
            if self.stage.stopping.is_set():
                return
            blow = Blow(fault.name, time.monotonic())
            self.blows.append(blow)
            try:
                kind.do(self, fault, blow)
            except Exception as error:  # told, and a failure of the run
                self.broken.append(f"{fault.name}: {error!r}")
            blow.ended = time.monotonic()
            self.say(f"{fault.at:8.2f} s  {blow.name} {' '.join(blow.lives)} {blow.note}")
            if owned:
                self.stage.wait(REST)

    # -- what faults need

    def signal(self, blow: Blow, life: str, pids: Iterable[int], number: signal.Signals) -> None:
        """Send a signal to processes of a life, one after the other without a pause."""
        blow.lives, blow.pids = (life,), tuple(pids)
        for pid in blow.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def container(self, life: str) -> list[int]:
        """Return all processes of a life. Watchers first: else who kills all looks like a suspect."""
        return sorted(self.stage.processes(life), key=lambda pid: not _is_watcher(pid))

    def watchers(self, worker: Worker) -> list[int]:
        """Return the watchers of the cells of a worker; a cell is the child of its watcher."""
        return [pid for pid in worker.child_pids() if _is_watcher(pid)]


def _is_watcher(pid: int) -> bool:
    return any(b"sandbox.watcher" in word for word in procfs.command(pid))
