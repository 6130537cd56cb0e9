"""The demo's own Redis server and supervised workers, what is sent to them, and nothing left of it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from celery import Celery

import celery_poison
from celery_poison import procfs
from celery_poison.demo.poisons import (
    BOMB,
    HEALTHY,
    PLAIN,
    POISONS,
    REDIS,
    SERIALIZER,
    Poison,
    Tally,
    build_app,
)
from celery_poison.testing import RedisServer, Supervisor, Worker

WORKERS = SLOTS = 2
#: Seconds that workers get for a warm shutdown before they are killed.
GRACE = 5.0
#: Every process of one demo carries this in its environment, however it descends from it.
MARK = "POISON_DEMO_ID"

_COMPLAINTS = re.compile(r": (WARNING|ERROR|CRITICAL)/|^\w+Error: ")
#: Complaints that are told at the end.
_LAST = 15
_IMPORTABLE_FROM = Path(celery_poison.__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Load:
    """The task ids of everything that was sent: of the healthy by number, of the poison by name."""

    healthy: dict[int, str] = field(default_factory=dict)
    poison: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Stage:
    """A Redis server, the app on it and its workers.

    Attributes:
        grace: how long its workers may take to stop; lowered when somebody waits for the end.
    """

    redis_url: str
    app: Celery
    tally: Tally
    workers: Supervisor
    environment: dict[str, str]
    grace: float = GRACE

    def send(self, order: list[int | Poison]) -> Load:
        """Send everything in this order, as any producer would."""
        load, tasks = Load(), self.app.tasks
        with self.app.producer_pool.acquire(block=True) as producer:
            for item in order:
                if isinstance(item, int):
                    load.healthy[item] = tasks[HEALTHY].apply_async((item,), producer=producer).id
                else:
                    options = {"serializer": SERIALIZER} if item is BOMB else {}
                    load.poison[item.name] = tasks[item.task].apply_async(producer=producer, **options).id
        return load

    def complaints(self) -> list[str]:
        """Return the last complaints in the workers' logs."""
        log = self.workers.log_text().splitlines()
        return [line for line in log if _COMPLAINTS.search(line)][-_LAST:]


def plan(healthy: int, seed: int) -> list[int | Poison]:
    """Return the order of sending: the healthy by number, each poison at a random place among them."""
    order: list[int | Poison] = list(range(healthy))
    chance = random.Random(seed)
    for poison in chance.sample(POISONS, len(POISONS)):
        order.insert(chance.randint(0, len(order)), poison)
    return order


@contextmanager
def open_stage(*, plain: bool, logs: Path | None = None) -> Iterator[Stage]:
    """Start Redis; the workers wait for ``stage.workers.start()``. Whatever happens, all of it ends.

    Args:
        plain: leave the plugin out.
        logs: write the workers' logs to this directory, which stays.

    Raises:
        FileNotFoundError: there is no redis-server.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-poison-demo-")))
        server = stack.enter_context(RedisServer())
        redis_url = server.url().rpartition("/")[0]
        mark = secrets.token_hex(8)
        environment = {REDIS: redis_url, PLAIN: str(int(plain))}
        stage = Stage(
            redis_url=redis_url,
            app=build_app(redis_url, plain=plain),
            tally=Tally(f"{redis_url}/2"),
            workers=_supervisor(environment | {MARK: mark}, directory, logs or directory),
            environment=environment,
        )
        stack.callback(_end_stragglers, mark)
        # Before the start: one that is broken off half-way is undone too.
        stack.callback(lambda: stage.workers.stop(stage.grace))
        stack.callback(stage.app.close)
        yield stage


def _supervisor(environment: dict[str, str], directory: Path, logs: Path) -> Supervisor:
    # A directory of its own keeps the workers from importing what happens to lie in the user's; nor
    # shall settings that were made for other workers reach these.
    path = os.pathsep.join(filter(None, (str(_IMPORTABLE_FROM), os.environ.get("PYTHONPATH"))))
    foreign = {name: "" for name in os.environ if name.startswith("CELERY_")}

    def make(name: str) -> Worker:
        return Worker(
            "celery_poison.demo.app",
            name=name,
            concurrency=SLOTS,
            # billiard leaves a directory behind for every worker that is killed: it goes with ours.
            env=foreign | environment | {"PYTHONPATH": path, "TMPDIR": str(directory)},
            cwd=directory,
            log_path=logs / f"{name}.log",
        )

    return Supervisor(make, WORKERS, give_up_after=1000)


def _end_stragglers(mark: str) -> None:
    """Kill what left its worker's process group and outlived it."""
    for pid in procfs.carrying(MARK, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Interrupted(Exception):
    """Somebody asked the demo to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Interruptions:
    """While entered, Ctrl-C and SIGTERM are a flag that is looked at between two steps.

    An exception thrown into the middle of starting a process would leave that process to nobody.
    """

    def __init__(self) -> None:
        self._number = 0
        self._former: dict[int, Any] = {}

    def pause(self, seconds: float = 0.0) -> None:
        """Sleep; then raise Interrupted if somebody asked."""
        time.sleep(seconds)
        if self._number:
            raise Interrupted(self._number)

    def _remember(self, number: int, _: object) -> None:
        self._number = self._number or number

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._former[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
