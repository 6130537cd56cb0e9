"""Private servers, proxies and a supervised fleet, and nothing left of them afterwards."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import celery_poison
from celery_poison.chaos import app as chaos_app
from celery_poison.chaos import tasklog
from celery_poison.testing import (
    RabbitServer,
    RedisServer,
    Supervisor,
    TcpProxy,
    Worker,
    proctable,
)

WORKERS = 3
#: What a worker of these pools runs at a time.
SLOTS = {"prefork": 4, "threads": 4, "gevent": 4, "solo": 1}
#: Plain Celery on Redis gives back what a dead worker held after so many seconds.
PLAIN_VISIBILITY = 20
#: In the environment of every process that is started here, and so in that of its descendants.
TAG = "POISON_CHAOS_ID"
#: Seconds that workers get for a warm shutdown in the end.
GRACE = 30.0

_IMPORTABLE_FROM = str(Path(celery_poison.__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Options:
    """What the fleet is."""

    pool: str = "prefork"
    broker: str = "redis"
    trial: str = "cell"
    plain: bool = False
    workers: int = WORKERS

    @property
    def slots(self) -> int:
        return SLOTS[self.pool]


class Ending(NamedTuple):
    """The end of one life of a worker: seconds, monotonic; exit status, negative: a signal's number."""

    life: str
    at: float
    status: int


class Stage:
    """Starts everything on entering; whatever happens, all of it ends on leaving.

    Args:
        directory: for logs and temporary files; it stays.
    """

    def __init__(self, options: Options, directory: Path) -> None:
        self.options, self.directory = options, directory
        self.log = tasklog.TaskLog(directory / "tasks.jsonl")
        self.temporary = directory / "tmp"
        self.lives: dict[str, Worker] = {}
        self.endings: list[Ending] = []
        self.stopping = threading.Event()
        self._tag = secrets.token_hex(8)
        self._present: dict[str, str] = {}
        self._proxies: dict[str, list[TcpProxy]] = {}
        self._stack = ExitStack()

    # -- life

    def __enter__(self) -> Self:
        try:
            self._start_servers()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_servers(self) -> None:
        enter = self._stack.enter_context
        for name in ("logs", "tmp"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.redis = enter(RedisServer(options={"appendonly": "yes", "appendfsync": "always"}))
        self.rabbit = enter(RabbitServer()) if self.options.broker == "rabbitmq" else None
        self.app = chaos_app.build(self._setup())
        self._stack.callback(self.app.close)
        for number in range(1, self.options.workers + 1):
            self._proxies[f"w{number}"] = [enter(TcpProxy("127.0.0.1", port)) for port in self._ports()]
        self._stack.callback(self._end_stragglers)
        self.fleet = Supervisor(self._make, self.options.workers, give_up_after=1_000_000)
        self._stack.callback(self._stop_fleet)

    def start_fleet(self) -> None:
        self.fleet.start().wait_ready(120)

    def stop_fleet(self) -> None:
        """A warm shutdown of all workers; no more restarts."""
        self.fleet.stop(GRACE)

    def _stop_fleet(self) -> None:
        self.stopping.set()
        # Who leaves before the end does not wait.
        self.fleet.stop(0.0)

    def _end_stragglers(self) -> None:
        for pid in proctable.carrying(TAG, self._tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- the workers

    def _setup(self, proxies: list[TcpProxy] | None = None) -> chaos_app.Setup:
        redis_url = self.redis.url()
        urls = [redis_url, *([self.rabbit.url()] if self.rabbit else [])]
        if proxies:
            urls = [proxy.url(url) for proxy, url in zip(proxies, urls, strict=True)]
        return chaos_app.Setup(urls[-1], urls[0], self.options.plain, self._settings())

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {} if self.options.plain else {"poison_trial": self.options.trial}
        if self.rabbit:
            # The second: Celery's own fault beside threads, see docs/known-limits.md.
            settings |= {
                "broker_transport_options": {"confirm_publish": True},
                "worker_enable_prefetch_count_reduction": False,
            }
        elif self.options.plain:
            settings["broker_transport_options"] = {"visibility_timeout": PLAIN_VISIBILITY}
        return settings

    def _ports(self) -> list[int]:
        return [self.redis.port, *([self.rabbit.port] if self.rabbit else [])]

    def _make(self, name: str) -> Worker:
        if former := self._present.get(name):
            self.endings.append(Ending(former, time.monotonic(), self.fleet.deaths[-1].status))
        life = f"{name}/{sum(one.startswith(f'{name}/') for one in self.lives) + 1}"
        worker = Worker(
            "celery_poison.chaos.app",
            name=name,
            pool=self.options.pool,
            concurrency=self.options.slots,
            env=self._environment(name, life),
            cwd=self.temporary,
            log_path=self.directory / "logs" / f"{life.replace('/', '-')}.log",
        )
        self._present[name], self.lives[life] = life, worker
        return worker

    def _environment(self, name: str, life: str) -> dict[str, str]:
        # Settings that were made for other workers shall not reach these.
        foreign = {name: "" for name in os.environ if name.startswith("CELERY_")}
        path = os.pathsep.join(filter(None, (_IMPORTABLE_FROM, os.environ.get("PYTHONPATH"))))
        return {
            **foreign,
            **self._setup(self._proxies[name]).as_environment(),
            TAG: self._tag,
            tasklog.LOG: str(self.log.path),
            tasklog.LIFE: life,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": path,
            "C_FORCE_ROOT": "1",  # else a worker of root's refuses to accept pickle
        }

    def present(self, number: int) -> tuple[str, Worker]:
        """Return the present life of a worker, and its name."""
        life = self._present[f"w{number}"]
        return life, self.lives[life]

    def proxies(self, number: int) -> list[TcpProxy]:
        return self._proxies[f"w{number}"]

    def processes(self, life: str) -> list[int]:
        """Return the main process, pool processes, cells and watchers of one life."""
        return proctable.carrying(tasklog.LIFE, life)

    # -- time

    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the run."""
        self.stopping.wait(seconds)


@contextlib.contextmanager
def directory_of(keep: Path | None) -> Any:
    """Yield the directory that shall be kept, made if need be, or one that disappears."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="celery-poison-chaos-", ignore_cleanup_errors=True) as path:
            yield Path(path)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
