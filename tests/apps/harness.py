"""Everything that one test needs of a fleet: the app, its workers, what they did, what was kept."""

from __future__ import annotations

import gc
import json
import os
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from celery import Celery
from celery.result import AsyncResult

from celery_poison import Quarantine
from celery_poison.basics import procfs
from celery_poison.cells.watcher import NURSERY
from celery_poison.testing import Supervisor, Worker, wait_until
from tests import PATIENCE
from tests.apps.factory import build_app
from tests.apps.marks import Marks

ROOT = Path(__file__).resolve().parents[2]
TAG = "POISON_TEST_TAG"


@dataclass
class Fleet:
    """A broker, a ledger and an app of one's own; workers on request.

    `ledger_url` None leaves it to the plugin to find its Redis. `settings` are Celery settings that
    the app gets beside its defaults. A kind of fleet has a `module` for its workers' `-A`, and a
    function that builds the same app.
    """

    module: ClassVar[str] = "tests.apps.fleet"
    build: ClassVar[Callable[..., Celery]] = staticmethod(build_app)

    broker_url: str
    backend_url: str
    marks_url: str
    directory: Path
    ledger_url: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    tag: str = field(default_factory=lambda: secrets.token_hex(8))

    def environ(self) -> dict[str, str]:
        variables = {
            "BROKER_URL": self.broker_url,
            "RESULT_BACKEND": self.backend_url,
            "MARKS_URL": self.marks_url,
            "POISON_SETTINGS": json.dumps(self.settings),
            "C_FORCE_ROOT": "1",  # else a worker of root's refuses to accept pickle
            TAG: self.tag,
        }
        return variables | ({"POISON_REDIS_URL": self.ledger_url} if self.ledger_url else {})

    @cached_property
    def app(self) -> Celery:
        return self.build(self.environ())

    @cached_property
    def marks(self) -> Marks:
        return Marks(self.marks_url)

    @cached_property
    def quarantine(self) -> Quarantine:
        return Quarantine(self.app)

    def send(self, task: str, *args: Any, **options: Any) -> AsyncResult:
        return self.app.tasks[f"fleet.{task}"].apply_async(args, **options)

    def worker(self, name: str = "w1", pool: str = "prefork", concurrency: int = 2, **options: Any) -> Worker:
        """A worker of this fleet; use it in a `with`, or start it."""
        return Worker(
            self.module,
            name=name,
            pool=pool,
            concurrency=concurrency,
            env=self.environ() | options.pop("env", {}),
            cwd=ROOT,
            log_path=self.directory / f"{name}.log",
            **options,
        )

    def supervise(
        self,
        count: int = 1,
        pool: str = "prefork",
        concurrency: int = 2,
        *,
        defaults: bool = False,
        **options: Any,
    ) -> Supervisor:
        """Workers of this fleet that are started again when they die."""
        return Supervisor(
            lambda name: self.worker(name, pool, concurrency, defaults=defaults), count, **options
        )

    def events(self, *kinds: str) -> list[dict[str, str]]:
        """What the journal tells; all of it, or of these kinds."""
        entries = self.quarantine.queries.journal(count=100_000)
        return [entry for entry in entries if not kinds or entry["event"] in kinds]

    def await_that(self, condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
        wait_until(condition, timeout=timeout, what=lambda: f"{what}\n{self.evidence()}")

    def evidence(self) -> str:
        """What helps to understand why something did not come about."""
        return self.log_text()[-5000:]

    def log_text(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in logs)

    def survivors(self) -> list[int]:
        """Processes that this fleet's workers left behind, in whatever session."""
        return procfs.carrying(TAG, self.tag)

    def close(self) -> None:
        """Kill survivors and say that there were any: no test may leave a process to the next."""
        # A nursery outlives its worker by what it has to say of its end.
        wait_until(lambda: NURSERY not in map(procfs.name, self.survivors()), what="the nurseries end")
        left = self.survivors()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        # Results say goodbye to their backend when they are collected: now, while its server lives.
        gc.collect()
        self.app.close()
        assert not left, f"processes outlived the test: {left}\n{self.log_text()[-3000:]}"
