"""Fleets beside servers that a test may stop, freeze and cut off, and what must be true afterwards."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_poison.plugin import plugin_of
from celery_poison.testing import RedisServer, Worker
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.outage.apps import build

#: Pools of which the second takes part in `tox -e matrix` only.
BOTH_POOLS = ["prefork", pytest.param("threads", marks=pytest.mark.matrix)]
#: Seconds of silence after which a worker is taken for dead here.
ACTIVATION = 2.0


@dataclass
class Site(Fleet):
    """A fleet, and the questions that all these tests ask. Its marks are on a Redis that stays well."""

    module = "tests.outage.app"
    build = staticmethod(build)

    killed: set[int] = field(default_factory=set)
    _asked_at: float = 0.0

    def evidence(self) -> str:
        """Return the records of the ledger and the end of the logs."""
        queries = self.quarantine.queries
        rows = [(mid, raw, start.token in self.done()) for mid, start, raw in queries.running()]
        told = [{key: word for key, word in entry.items() if word} for entry in queries.journal()]
        return "\n".join(map(str, [*rows, *queries.parked(), *told, self.log_text()[-6000:]]))

    def done(self) -> set[str]:
        """Return the tokens of the starts that have ended by the ledger."""
        ledger = plugin_of(self.app).open_ledger()
        found: Any = ledger.client.hkeys(ledger.keys.done)
        return {token.decode() for token in found}

    def starts(self, task: str = "where") -> Counter[Any]:
        return self.marks.count(task, "start")

    def ends(self, task: str = "where") -> Counter[Any]:
        return self.marks.count(task, "end")

    def ran_once(self, task: str = "where") -> bool:
        """Whether every message that began was begun once."""
        return set(self.starts(task).values()) == {1} and self.starts(task) == self.ends(task)

    def overlapped(self) -> list[str]:
        """Return the ids that ran twice at one time; the runs of a killed worker ended with it."""
        running: dict[str, set[int]] = {}
        twice = []
        for mark in self.marks.all():
            here = running.setdefault(mark.id, set())
            here -= self.killed
            if mark.event == "end":
                here.discard(mark.pid)
            elif here:
                twice.append(mark.id)
            else:
                here.add(mark.pid)
        return twice

    def on(self, worker: Worker, event: str = "start") -> list[Any]:
        """Return the first arguments of the tasks that ran on a worker, in order."""
        mine = {worker.main_pid, *worker.child_pids()}
        return [mark.n for mark in self.marks.all("where", event) if mark.pid in mine]

    def heard_for(self, seconds: float) -> bool:
        """Whether so many seconds have passed since the first call."""
        if not self._asked_at:
            self._asked_at = time.monotonic()
        return time.monotonic() - self._asked_at > seconds

    def kill(self, worker: Worker) -> None:
        self.killed |= {worker.main_pid, *worker.child_pids()}
        worker.kill_group()

    def result_of(self, sent: AsyncResult) -> Any:
        """Return a task's result, by polling: a restart of Redis cuts off a caller that only waits for it."""

        def stored() -> bool:
            sent._cache = None
            return bool(sent.state == "SUCCESS")

        self.await_that(stored, f"{sent.id} has a result")
        return sent.result

    def nobody_is_blamed(self) -> bool:
        """Whether no death was noticed, and nothing flagged, counted or kept."""
        told = self.events("crashed", "interrupted", "worker_lost", "quarantined")
        return not told and not self.quarantine.queries.incidents() and not self.suspects()

    def suspects(self) -> list[Any]:
        """Return the messages that are flagged or in quarantine."""
        return [*self.quarantine.list(), *self.quarantine.list(candidates=True)]

    def on_record(self) -> int:
        """Return the number of starts that run by the ledger."""
        return len([*self.quarantine.queries.running()])

    def is_over(self) -> bool:
        """Whether all starts have ended. Some stay on record, since a copy of their message may come."""
        return {start.token for _, start, _ in self.quarantine.queries.running()} <= self.done()

    def known_workers(self) -> set[str]:
        """Return the nodes that live by the ledger."""
        alive = self.quarantine.queries.workers(1000)
        return {row.worker.partition("@")[0] for row in alive if row.alive}

    def still_guards(self, *workers: Worker) -> None:
        """Kill a worker that is running something: it is noticed, and the message run by another."""
        assert all(worker.is_alive() for worker in workers)
        # An end that the ledger has not been told again would be one more message to be flagged.
        self.await_that(self.is_over, "the ledger knows what has ended")
        before = len(self.events("worker_lost"))
        sent = self.send("where", 900, PATIENCE, 0)
        self.await_that(lambda: self.starts()[900] == 1, "one more runs")
        self.kill(next(worker for worker in workers if 900 in self.on(worker)))
        self.await_that(lambda: len(self.events("worker_lost")) > before, "a death is noticed again")
        assert self.result_of(sent) in {f"{worker.name}@test" for worker in workers}
        assert [e["id"] for e in self.events("crashed")][-1:] == [sent.id], "its message was flagged"


@pytest.fixture
def new_site(new_server: Callable[..., RedisServer], assemble: Callable[..., Site]) -> Callable[..., Site]:
    """A function that makes a Site from a broker's URL and Celery settings; it ends before its servers."""
    patient = {"poison_heartbeat_interval": ACTIVATION / 4, "poison_activation_interval": ACTIVATION}
    return lambda broker_url, **options: assemble(Site, broker_url, **(patient | options))


class Rewind:
    """The disk of a Redis as of one moment: with it, the server comes back without all that came since."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._saved = server.directory / "saved"
        folder, file = server.directory / "appendonlydir", server.directory / "appendonly.aof"
        self._live, copy = (folder, shutil.copytree) if folder.exists() else (file, shutil.copy)  # Redis 6
        copy(self._live, self._saved)

    def restart(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Kill the server, do something, and start it again with what it had then."""
        self._server.kill()
        meanwhile()
        self._live.rename(self._live.with_name("lost"))
        self._saved.rename(self._live)
        self._server.start()
