"""Somebody kills, stops or cuts off what takes part in a trial, between any two of its steps."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from celery.exceptions import TimeLimitExceeded

from celery_poison.basics import procfs
from celery_poison.basics.procfs import MemoryGroup
from celery_poison.cells.cell import pair
from celery_poison.cells.trial import MOMENT, OUTLIVE
from celery_poison.cells.watcher import Memory, watch
from celery_poison.testing import RedisServer, wait_until
from tests import PATIENCE, sampled
from tests.cells.apps import BEGINS_WITH
from tests.cells.conftest import Court
from tests.fleet.crew import frozen
from tests.harness.proxy import TcpProxy

#: As tests/apps/factory.py sets it.
ACTIVATION = 1.0

matrix = pytest.mark.matrix


def _kill_unnoticed(cell: int, worker: int) -> None:
    """Kill a cell whose watcher notices it, but whose worker has no time to."""
    os.kill(worker, signal.SIGSTOP)
    os.kill(cell, signal.SIGKILL)
    wait_until(lambda: procfs.process(cell) is None)


@pytest.mark.parametrize("order", sampled([("watcher", "worker")], [(("cell", "worker", "watcher"),)]))
def test_NEW_1_who_kills_a_cell_and_then_its_worker_convicts_nobody(
    court: Court, order: tuple[str, ...]
) -> None:
    """As one does who kills all processes of a container, in whatever order."""
    suspect = court.suspect("trial.waits")
    with court.worker(pool="threads") as first:
        court.await_start("waits")
        (start,), (watcher,) = court.on_trial(), court.watchers()
        pids = {"watcher": watcher, "cell": start.pid, "worker": first.main_pid}
        for name in order:
            if name == "cell":
                _kill_unnoticed(start.pid, first.main_pid)
            else:
                with suppress(ProcessLookupError):  # a watcher stays for two seconds after its cell
                    os.kill(pids[name], signal.SIGKILL)
                # The pause is the experiment: nothing tells from outside that a worker thinks.
                time.sleep((MOMENT + OUTLIVE) / 3)
        first.wait()
    court.marks.repair()
    with court.worker("w2", pool="threads"):
        assert suspect.get(timeout=PATIENCE) == "repaired"
        court.await_acquittal()
    assert len(court.events("crashed")) == 1, "the one by which it became a suspect"


def test_a_watcher_outlives_a_cell_that_was_killed_until_its_worker_has_looked() -> None:
    """Else its worker takes it for killed too, and waits longer until it believes in the suspect's guilt."""
    control, watchers = pair()
    pid = os.fork()
    if not pid:
        with closing(control):
            group, worker = MemoryGroup(), os.pidfd_open(os.getppid())
            if not (cell := os.fork()):
                os.kill(os.getpid(), signal.SIGKILL)
            watch(watchers, worker, Memory(cell, 0, group))
        os._exit(0)
    watchers.close()
    control.setblocking(True)
    with closing(control):
        facts = [json.loads(control.recv(4096)) for _ in ("pid", "status")]
        assert facts[0]["watcher"] == pid
        assert facts[1]["status"] == -signal.SIGKILL
        time.sleep(5 * MOMENT)  # the pause is the experiment: it stays
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert os.waitpid(pid, 0) == (pid, 0)


@pytest.mark.parametrize("victim", ["watcher", pytest.param("cell", marks=matrix)])
def test_a_cell_that_is_killed_while_it_opens_is_opened_again(
    court: Court, victim: str, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    with court.worker(pool="threads", env={BEGINS_WITH: str(killed)}) as worker:
        suspect = court.suspect("trial.waits")
        court.await_that(court.watchers, "a watcher")
        (watcher,) = court.watchers()
        court.await_that(lambda: procfs.children_of(watcher), "a cell that is set up")
        (cell,) = procfs.children_of(watcher)
        os.kill(watcher if victim == "watcher" else cell, signal.SIGKILL)
        court.await_that(lambda: not procfs.is_alive(cell), "both are gone")
        killed.touch()
        court.await_start("waits")
        assert [mark.pid for mark in court.marks.all("waits", "start")] != [cell]
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"], "and others beside it"
        court.marks.repair()
        assert suspect.get(timeout=PATIENCE) == "repaired"
        court.await_acquittal()
        assert "cannot be tried in cells" not in worker.log_text()
    assert len(court.events("crashed")) == 2, "those by which they became suspects"


@matrix
def test_a_time_limit_ends_a_suspect_that_has_stopped_its_watcher(court: Court) -> None:
    suspect = court.suspect("trial.dies", "stop-watcher", time_limit=0.5)
    with court.worker():
        with pytest.raises(TimeLimitExceeded):
            suspect.get(timeout=PATIENCE)
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"]
        court.await_acquittal()


def test_a_suspect_that_has_stopped_its_watcher_does_not_outlive_its_worker(court: Court) -> None:
    court.suspect("trial.dies", "stop-watcher")
    with court.worker(pool="threads") as worker:
        court.await_start("dies")
        worker.quit()
        worker.wait()
        court.await_that(lambda: not court.survivors(), "nobody is left")
    assert len(court.events("crashed")) == 1, "the one by which it became a suspect"


@pytest.mark.parametrize(
    "who", [*(pytest.param(who, marks=matrix) for who in ("worker", "cell")), "everybody"]
)
def test_NEW_1_a_trial_whose_processes_are_paused_goes_on_and_is_not_begun_elsewhere(
    court: Court, who: str
) -> None:
    """A worker that is paused with its cell is taken for dead; its cell must not end a second time then."""
    suspect = court.suspect("trial.waits")
    with court.worker(pool="threads") as host:
        court.await_start("waits")
        (start,) = court.on_trial()
        pids = {"worker": [host.main_pid], "cell": [start.pid], "everybody": court.survivors()}[who]

        def begun() -> int:
            return len(court.marks.all("waits", "start"))

        with court.worker("w2", pool="threads") as other:
            other.wait_ready()
            with frozen(*pids):
                if who == "everybody":
                    wait_until(lambda: begun() == 2, what="the other worker tries it")
                else:
                    court.await_that(court.lives_on(other, 3 * ACTIVATION), "the other had time to begin it")
                tried = begun()
            court.marks.repair()
            assert suspect.get(timeout=PATIENCE) == "repaired"
            court.await_acquittal()
    assert tried == (2 if who == "everybody" else 1)
    assert len(court.events("crashed")) == 1, "the one by which it became a suspect"
    assert not court.quarantine.list()


# --- the ledger is away -------------------------------------------------------------------------------


class Line(NamedTuple):
    """A ledger behind a line that a test may cut."""

    proxy: TcpProxy
    server: RedisServer

    @property
    def url(self) -> str:
        return self.proxy.url(self.server.url())

    def silent_for(self, court: Court) -> float:
        """The seconds since the last heartbeat that the ledger has heard."""
        client: Any = self.server.client()
        ((_, beat),) = client.zrange(court.ledger.keys.leases, 0, -1, withscores=True)
        return float(client.time()[0] - beat / 1000)


@pytest.fixture
def line() -> Iterator[Line]:
    with RedisServer() as server:
        url = urlsplit(server.url())
        with TcpProxy(url.hostname or "", url.port or 0) as proxy:
            yield Line(proxy, server)


@pytest.mark.parametrize(
    ("end", "blow"),
    [
        pytest.param("survives", "cut", marks=matrix),
        ("survives", "freeze"),
        ("dies", "cut"),
        pytest.param("dies", "freeze", marks=matrix),
    ],
)
def test_NEW_1_a_trial_during_which_the_ledger_is_cut_off_ends_as_it_would_have(
    new_court: Callable[..., Court], redis_url: str, line: Line, blow: str, end: str
) -> None:
    court: Court = new_court(redis_url, poison_redis_url=line.url)
    suspect = court.suspect(*(["trial.waits"] if end == "survives" else ["trial.dies", "when-repaired"]))
    task = "waits" if end == "survives" else "dies"
    with court.worker(pool="threads") as worker:
        court.await_start(task)
        (start,) = court.on_trial()
        getattr(line.proxy, blow)()
        court.await_that(lambda: line.silent_for(court) > 2 * ACTIVATION, "the worker's lease runs out")
        court.marks.repair()
        if end == "survives":
            court.await_that(lambda: suspect.state == "SUCCESS", "it ends while the ledger is away")
        else:
            court.await_that(lambda: procfs.process(start.pid) is None, "it dies while the ledger is away")
        line.proxy.heal()
        if end == "survives":
            assert suspect.get(timeout=PATIENCE) == "repaired"
            court.await_acquittal()
        else:
            court.await_that(court.quarantine.list, "convicted")
        assert court.suspect("trial.tells").get(timeout=PATIENCE)["in_cell"], "and all is well again"
        court.await_acquittal()
        assert worker.is_alive()
    assert len(court.marks.all(task, "start")) == 1
    kept: list[Any] = court.quarantine.list()
    assert [record.strikes for record in kept] == ([] if end == "survives" else [2])
