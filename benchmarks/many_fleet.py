"""Private servers and workers of one set-up of `many.py` or `outsiders.py`, and what is seen of them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import many_app
import repository  # noqa: F401 - whose `tests` are meant below

from celery_poison import Quarantine
from celery_poison.basics import procfs
from celery_poison.model import Start
from celery_poison.plugin import marking, plugin_of
from celery_poison.testing import RedisServer, Worker
from tests.harness.servers import RabbitServer

HERE = Path(__file__).resolve().parent
TAG = "MANY_TAG"
#: Seconds between two looks at the memory.
LOOK = 1.0


class Setup(NamedTuple):
    """Plain or guarded; on ``redis``, which holds the ledger too, or ``rabbitmq`` with a type of queue."""

    guarded: bool
    broker: str
    queue: str = "classic"

    @property
    def name(self) -> str:
        kind = " quorum" if self.queue == "quorum" else ""
        return f"{'guarded' if self.guarded else 'plain'}, {self.broker}{kind}"


class Mark(NamedTuple):
    event: str
    name: str
    at: float


class Fleet:
    """Starts servers on entering, and leaves no process behind."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._tag = secrets.token_hex(8)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            ledger, notes = (stack.enter_context(RedisServer()) for _ in range(2))
            rabbit = self.setup.broker == "rabbitmq"
            self.env = {
                "MANY_BROKER": stack.enter_context(RabbitServer()).url() if rabbit else ledger.url(0),
                "MANY_LEDGER": ledger.url(1) if self.setup.guarded else "",
                "MANY_QUEUE": self.setup.queue,
                "MANY_MARKS": notes.url(),
                TAG: self._tag,
            }
            self._notes = stack.enter_context(notes.client(socket_timeout=60))
            self.app = stack.enter_context(many_app.build(self.env))
            stack.callback(self._sweep)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _sweep(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def worker(self, name: str, pool: str, concurrency: int) -> Worker:
        return Worker(
            "many_app",
            name=name,
            pool=pool,
            concurrency=concurrency,
            env=self.env,
            cwd=HERE,
        )

    def processes(self) -> list[int]:
        """Every process that was started here, whatever session it is in."""
        return procfs.carrying(TAG, self._tag)

    # -- messages

    def send(self, task: str, name: str, *arguments: Any) -> None:
        self.app.tasks[f"many.{task}"].apply_async((name, *arguments), task_id=name)

    def suspect(self, task: str, name: str, *arguments: Any) -> None:
        """Send a message that was running when a whole worker died, as the ledger tells it."""
        mid, ledger = uuid4().hex, plugin_of(self.app).open_ledger()
        known: dict[str, Any] = {"queue": many_app.QUEUE, "max_crashes": 2, "max_failures": 5}
        start = Start.of(f"dead.{name}", "w0@test/dead", name, f"many.{task}", **known)
        ledger.messages.crash(mid, start, cause="worker_lost", shared=True)
        with marking(name):
            self.send(task, name, *arguments)

    def strike(self) -> None:
        """From now on runs end by themselves, and a poison kills."""
        self._notes.set(many_app.STRUCK, 1)

    # -- what is seen

    def marks(self, event: str = "") -> list[Mark]:
        found = [Mark(*json.loads(line)) for line in self._notes.lrange(many_app.MARKS, 0, -1)]
        return [mark for mark in found if event in ("", mark.event)]

    def names(self, event: str) -> set[str]:
        return {mark.name for mark in self.marks(event)}

    def convicted(self) -> set[str]:
        return {one.id for one in Quarantine(self.app).list()} if self.setup.guarded else set()

    def cpu(self) -> float:
        """Seconds of processor time of all processes that live, and of those that they have waited for."""
        return sum(map(_with_children, self.processes()))


def _with_children(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def memory(pids: list[int]) -> float:
    """Megabytes of these processes, shared pages counted once (proportional set size)."""
    found = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


class Memory:
    """Looks how much memory a fleet takes, from time to time: the most of it beyond what it was at first."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._over = fleet, threading.Event()
        self.before = self.most = memory(fleet.processes())
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def added(self) -> float:
        return self.most - self.before

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            self.most = max(self.most, memory(self._fleet.processes()))
