"""What every script here stands on: private servers, one app, workers, and what its tasks left behind.

A script has a docstring with its issue and title, the outcomes ``PLAIN`` and ``GUARDED``, a function
``tasks(task)`` that makes its tasks, and a function ``play(stage)`` that plays the issue and says what came
of it. Without the plugin and with it the same lines run.
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from celery import Celery
from celery.result import AsyncResult

from celery_poison import Quarantine, install
from celery_poison.testing import RedisServer, Supervisor, WaitTimeout, Worker, wait_until
from celery_poison.testing.servers import free_ports
from tests.harness.proxy import TcpProxy
from tests.harness.servers import RabbitServer

ROOT = Path(__file__).resolve().parents[2]
#: What people set who do not want to lose a task with its worker.
LATE: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}
#: Redis gives back what is unacknowledged for longer than a second, and looks every second.
EAGER: dict[str, int] = {
    "visibility_timeout": 1,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}


def mark(word: str) -> None:
    """Leave a line in a file that outlives the process which runs this task."""
    _leave(os.environ, word)


def marked(word: str) -> bool:
    """Whether somebody left this mark."""
    return word in _marks(os.environ)


def _leave(environ: Mapping[str, str], word: str) -> None:
    with open(environ["ISSUES_MARKS"], "a") as marks:
        marks.write(f"{word}\n")


def _marks(environ: Mapping[str, str]) -> list[str]:
    marks = Path(environ["ISSUES_MARKS"])
    return marks.read_text().splitlines() if marks.exists() else []


def times(count: int) -> str:
    """A number of times, in words."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def script(name: str) -> ModuleType:
    return importlib.import_module(f"examples.issues.{name}")


def make_app(environ: Mapping[str, str]) -> Celery:
    """The app of one script, with the plugin or without, as the environment says."""
    played = script(environ["ISSUES_SCRIPT"])
    app = Celery("issues", broker=environ["ISSUES_BROKER"], backend=environ["ISSUES_BACKEND"])
    app.conf.update(broker_connection_retry_on_startup=True, **getattr(played, "SETTINGS", {}))
    app.steps["consumer"].update(getattr(played, "STEPS", ()))
    return furnish(app, environ)


def furnish(app: Celery, environ: Mapping[str, str]) -> Celery:
    """Give an app the plugin, if the environment says so, and the script's tasks."""
    if environ["ISSUES_GUARDED"]:
        install(app, poison_guard_all=True)

    def task(**options: Any) -> Callable[[Callable[..., Any]], Any]:
        # Not shared: Celery would give a shared task to every other app of this process.
        return lambda run: app.task(run, **{"name": run.__name__, "shared": False, **options})

    script(environ["ISSUES_SCRIPT"]).tasks(task)
    return app


class Stage:
    """A script's servers, its app and its workers; in a ``with``."""

    def __init__(self, name: str, *, guarded: bool) -> None:
        self.name, self.guarded = name, guarded
        self._stack = ExitStack()
        self._workers = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._directory = Path(stack.enter_context(TemporaryDirectory(prefix="poison-issue-")))
            self.redis = stack.enter_context(RedisServer(options={"appendonly": "yes"}))
            self.rabbit: Any = None
            if getattr(script(self.name), "BROKER", "redis") == "rabbitmq":
                self.rabbit = stack.enter_context(RabbitServer())
            self._proxy = stack.enter_context(TcpProxy("127.0.0.1", (self.rabbit or self.redis).port))
            stack.callback(lambda: self.app.close())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def environ(self) -> dict[str, str]:
        return {
            "ISSUES_SCRIPT": self.name,
            "ISSUES_BROKER": self._proxy.url(self.rabbit.url() if self.rabbit else self.redis.url(0)),
            "ISSUES_BACKEND": self.redis.url(1),
            "ISSUES_GUARDED": "yes" if self.guarded else "",
            "ISSUES_MARKS": str(self._directory / "marks"),
        }

    @functools.cached_property
    def app(self) -> Celery:
        return make_app(self.environ)

    def play(self) -> str:
        """Play the script, and return what came of it."""
        outcome: str = script(self.name).play(self)
        return outcome

    def send(self, task: str, *args: Any, **options: Any) -> AsyncResult:
        return self.app.tasks[task].apply_async(args, **options)

    @contextmanager
    def worker(self, **options: Any) -> Iterator[Worker]:
        """A worker that consumes."""
        self._workers += 1
        with self._make(f"w{self._workers}", **options) as worker:
            yield worker.wait_ready()

    def supervised(self, **options: Any) -> Supervisor:
        """A worker that is started again when it dies."""
        return Supervisor(functools.partial(self._make, **options))

    def cut(self) -> None:
        """Break all connections with the broker; new ones are accepted."""
        self._proxy.drop_connections()

    def wait(self, condition: Callable[[], object], watch: float | None = None) -> bool:
        """Wait until it is so, and say whether it came.

        ``watch``: seconds after which a fleet without the plugin is not waited for any longer.
        """
        try:
            wait_until(condition, *() if watch is None or self.guarded else (watch,))
        except WaitTimeout:
            return False
        return True

    def watch(self, seconds: float) -> None:
        """Give to what must not happen the time to happen."""
        time.sleep(seconds)

    def count(self, word: str) -> int:
        """How often this mark was left."""
        return _marks(self.environ).count(word)

    def leave(self, word: str) -> None:
        """Leave a mark for the tasks."""
        _leave(self.environ, word)

    def unacked(self) -> int:
        """How many messages were delivered and not acknowledged, on a Redis broker."""
        with self.redis.client() as client:
            return int(client.hlen("unacked"))

    def listeners(self) -> int:
        """How many workers wait for a message at this moment, on a Redis broker."""
        with self.redis.client() as client:
            return int(client.info("clients")["blocked_clients"])

    def kept(self) -> int:
        """How many messages are in quarantine."""
        return len(Quarantine(self.app).list()) if self.guarded else 0

    def pytest(self) -> str:
        """Run the script's own tests, with Celery's fixtures, and say how they ended."""
        words = ["-q", "-p", "celery.contrib.pytest", "-p", "examples.issues.fixtures", "--noconftest"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            *words,
            "-p",
            "no:cacheprovider",
            "--rootdir",
            self._directory,
        ]
        ran = subprocess.run(
            [*command, ROOT / "examples" / "issues" / f"{self.name}.py"],
            cwd=ROOT,
            env=os.environ | self.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=180,
        )
        (self._directory / "pytest.log").write_text(ran.stdout + ran.stderr)
        return re.sub(r",? \d+ warnings?| in [\d.]+s.*", "", ran.stdout.splitlines()[-1])

    def flower(self, path: str, asked: dict[str, Any]) -> int:
        """Start a Flower, send this to it, and return the HTTP status of its answer."""
        port, login = free_ports()[0], "ann:secret"
        command = [sys.executable, "-m", "celery", "-A", "examples.issues.app", *["poison"] * self.guarded]
        command += ["flower", f"--port={port}", "--address=127.0.0.1", f"--basic_auth={login}"]
        environ = os.environ | self.environ | {"PYTHONPATH": str(ROOT)}
        with (self._directory / "flower.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        headers = {
            "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
            "X-Poison-Client": self.name,
        }
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: _status(Request(f"{url}/healthcheck")) == 200, what=self.logs)
            return _status(Request(url + path, json.dumps(asked).encode(), headers))
        finally:
            process.terminate()
            process.wait()

    def logs(self) -> str:
        paths = sorted(self._directory.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in paths)

    def _make(self, name: str, **options: Any) -> Worker:
        log = self._directory / f"{name}.log"
        return Worker(
            "examples.issues.app",
            name=name,
            env=self.environ | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            log_path=log,
            defaults=True,
            **options,
        )


def _status(request: Request) -> int:
    """The HTTP status of the answer; 0 without one."""
    try:
        with urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except HTTPError as refused:
        return refused.code
    except OSError:
        return 0
