"""The demo's own Redis server and supervised workers, and nothing left of them afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

import celery_poison
from celery_poison.demo.factory import PLAIN, REDIS, build_app
from celery_poison.demo.tally import Tally
from celery_poison.testing import RedisServer, Supervisor, Worker, proctable

WORKERS = 2
SLOTS = 2
#: Seconds that workers get for a warm shutdown before they are killed.
GRACE = 5.0
#: Every process of one demo carries this in its environment, however it descends from it.
MARK = "POISON_DEMO_ID"

_COMPLAINTS = re.compile(r": (WARNING|ERROR|CRITICAL)/|^\w+Error: ")
#: Complaints that are told at the end.
_LAST = 15
_IMPORTABLE_FROM = Path(celery_poison.__file__).parents[1]


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

    def last_words(self) -> list[str]:
        """Return the last complaints in the workers' logs."""
        log = self.workers.log_text().splitlines()
        return [line for line in log if _COMPLAINTS.search(line)][-_LAST:]


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
    for pid in proctable.carrying(MARK, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
