"""Fleets whose app also has the tasks of tests.worker.apps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_poison.testing import Supervisor, Worker, wait_until
from tests.apps.harness import ROOT, Fleet
from tests.worker.apps import build


@dataclass
class Crew(Fleet):
    """A fleet with more kinds of tasks, and questions that tests ask often."""

    @cached_property
    def app(self) -> Celery:
        return build(self.environ())

    def worker(self, name: str = "w1", pool: str = "prefork", concurrency: int = 2, **options: Any) -> Worker:
        return Worker(
            "tests.worker.app",
            name=name,
            pool=pool,
            concurrency=concurrency,
            env=self.environ() | options.pop("env", {}),
            cwd=ROOT,
            log_path=self.directory / f"{name}.log",
            **options,
        )

    def supervise_crew(self, count: int = 1, concurrency: int = 2, pool: str = "prefork") -> Supervisor:
        return Supervisor(lambda name: self.worker(name, pool, concurrency), count)

    def starts(self, task: str) -> int:
        return len(self.marks.all(task, "start"))

    def events(self, *kinds: str) -> list[dict[str, str]]:
        entries = self.quarantine.queries.journal(count=100_000)
        return [entry for entry in entries if not kinds or entry["event"] in kinds]

    def no_strikes(self) -> bool:
        return not self.events("crashed") and not self.quarantine.list() + self.quarantine.list(
            candidates=True
        )

    def nothing_runs(self) -> bool:
        """Whether the ledger has forgotten every start."""
        return not [*self.quarantine.queries.running()]

    def await_that(self, condition: Callable[[], object], what: str, timeout: float = 40) -> None:
        wait_until(condition, timeout=timeout, what=lambda: f"{what}\n{self.log_text()[-5000:]}")


@pytest.fixture
def new_crew(new_redis_url: Callable[[], str], tmp_path: Path) -> Any:
    crews: list[Crew] = []

    def build_crew(broker_url: str, **settings: Any) -> Crew:
        directory = tmp_path / f"crew{len(crews)}"
        directory.mkdir()
        ledger = None if broker_url.startswith("redis") else new_redis_url()
        crew = Crew(broker_url, new_redis_url(), new_redis_url(), directory, ledger, settings)
        crews.append(crew)
        return crew

    yield build_crew
    for crew in crews:
        crew.close()


@pytest.fixture
def crew(new_crew: Callable[..., Crew], broker_url: str) -> Crew:
    return new_crew(broker_url)
