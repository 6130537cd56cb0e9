"""A fleet that has suspects from the start."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from uuid import uuid4

import pytest
from celery.result import AsyncResult
from celery.signals import before_task_publish

from celery_poison.basics import procfs
from celery_poison.cells.watcher import NURSERY, WATCHER
from celery_poison.headers import MID
from celery_poison.model import Start
from celery_poison.plugin import marking, plugin_of
from celery_poison.testing import Worker
from tests.apps.harness import Fleet
from tests.cells.apps import build

POOLS, BROKERS = ("prefork", "threads", "gevent", "eventlet", "solo"), ("redis", "rabbitmq")


def every_pool_and_broker(*always: tuple[str, str]) -> Any:
    """Parametrize by ``pool`` and ``broker_url``; usual pairs that are not given here are of the matrix."""
    cells = [
        pytest.param(*cell, id="-".join(cell), marks=() if cell in always else pytest.mark.matrix)
        for cell in dict.fromkeys([*itertools.product(POOLS, BROKERS), *always])
    ]
    return pytest.mark.parametrize(("pool", "broker_url"), cells, indirect=["broker_url"])


@dataclass
class Court(Fleet):
    """A fleet whose messages can be suspects before anybody has died."""

    module = "tests.cells.app"
    build = staticmethod(build)

    @cached_property
    def ledger(self) -> Any:
        return plugin_of(self.app).open_ledger()

    def suspect(self, task: str, *args: Any, doubts: int = 0, **options: Any) -> AsyncResult:
        """Send a message that was running when a whole worker died, as the ledger tells it.

        Args:
            doubts: how many of its trials ended with the worker beside which they ran, and with many others.
        """
        id = str(uuid4())
        start = Start("R", f"dead.{id}", "w0@test/dead", 1, 1, 1, 0, id, task, "celery", 2, 5, 10, 1)

        def flag(headers: dict[str, Any], **_: Any) -> None:
            """Before it is sent, and when it has its mid."""
            mid = headers[MID]
            self.ledger.messages.crash(mid, start, cause="worker_lost", shared=True, incident="i0")
            for _n in range(doubts):
                self.ledger.messages.claim(mid, b"", start)
                self.ledger.messages.interrupt(mid, start, cause="worker_lost", doubt=1, spoilt=True)

        before_task_publish.connect(flag, weak=False)
        try:
            with marking(id):
                return self.app.tasks[task].apply_async(args, task_id=id, **options)
        finally:
            before_task_publish.disconnect(flag)

    def lives_on(self, worker: Worker, seconds: float) -> Callable[[], bool]:
        """A condition: the worker has told for so many seconds more that it lives, by the ledger's clock."""
        leases = self.quarantine.queries.leases

        def beaten() -> int:
            return max((at for name, at in leases().items() if name.startswith(worker.hostname)), default=0)

        self.await_that(beaten, f"{worker.hostname} has said that it lives")
        until = beaten() + 1000 * seconds
        return lambda: beaten() > until

    def await_start(self, task: str, count: int = 1) -> None:
        self.await_that(lambda: len(self.marks.all(task, "start")) >= count, f"{count} starts of {task}")

    def await_acquittal(self) -> None:
        self.await_that(lambda: not self.suspects(), "nobody is suspected any more")

    def suspects(self) -> list[Any]:
        return [record for record in self.quarantine.list(candidates=True) if record.state != "NDLV"]

    def on_trial(self) -> list[Start]:
        return [s for _, s, _ in self.quarantine.queries.running() if s.alone and s.phase == "R"]

    def watchers(self) -> list[int]:
        return [pid for pid in self.survivors() if procfs.name(pid) == WATCHER]

    def nurseries(self) -> list[int]:
        return [pid for pid in self.survivors() if procfs.name(pid) == NURSERY]


@pytest.fixture
def new_court(assemble: Callable[..., Court]) -> Callable[..., Court]:
    return partial(assemble, Court)


@pytest.fixture
def court(new_court: Callable[..., Court], broker_url: str) -> Court:
    return new_court(broker_url)
