"""The demo's own Redis server and supervised workers, what is sent to them, and nothing left of it."""

from __future__ import annotations

import random
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from celery import Celery

from celery_poison.demo.app import (
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
from celery_poison.testing.processes import end_marked, private_environment
from celery_poison.testing.servers import Interrupted

WORKERS = SLOTS = 2
#: Seconds that workers get for a warm shutdown before they are killed.
GRACE = 5.0
#: Every process of one demo carries this in its environment, however it descends from it.
MARK = "POISON_DEMO_ID"

_COMPLAINTS = re.compile(r": (WARNING|ERROR|CRITICAL)/|^\w+Error: ")
#: Complaints that are told at the end.
_LAST = 15


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
def open_stage(*, plain: bool) -> Iterator[Stage]:
    """Start Redis; the workers wait for ``stage.workers.start()``. Whatever happens, all of it ends.

    Args:
        plain: leave the plugin out.

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
            workers=_supervisor(environment | {MARK: mark}, directory),
            environment=environment,
        )
        stack.callback(end_marked, MARK, mark)
        # Before the start: one that is broken off half-way is undone too.
        stack.callback(lambda: stage.workers.stop(stage.grace))
        stack.callback(stage.app.close)
        try:
            yield stage
        except (Interrupted, OSError):
            stage.grace = 0.0
            raise


def _supervisor(environment: dict[str, str], directory: Path) -> Supervisor:
    # billiard leaves a directory behind for every worker that is killed: it goes with ours. There is also
    # nothing that they could import by mistake.
    env = private_environment() | environment | {"TMPDIR": str(directory)}

    def make(name: str) -> Worker:
        app, log = "celery_poison.demo.app", directory / f"{name}.log"
        return Worker(app, name=name, concurrency=SLOTS, env=env, cwd=directory, log_path=log)

    return Supervisor(make, WORKERS, give_up_after=1000)
