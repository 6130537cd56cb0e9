"""Six observers of a worker that lives and does not work: some name each fault, none a working worker.

The table in docs/monitoring.md is held against the faults here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from celery_poison.metrics import register
from celery_poison.testing import Worker
from tests import PATIENCE
from tests.apps.harness import ROOT
from tests.cli.conftest import Console
from tests.fleet.crew import frozen
from tests.harness.proxy import TcpProxy
from tests.metrics.conftest import scraped
from tests.outage.conftest import Site

#: Seconds; a probe, too, answers within a test. A worker looks at itself once a second, so none beats faster.
STUCK_AFTER, COMES_UP, LIMIT, BEAT, ACTIVATION = 1.5, 2.0, 1.0, 1.0, 4.0
SETTINGS = {
    "poison_stuck_after": STUCK_AFTER,
    "poison_restart_after": 3.0,
    "poison_heartbeat_interval": BEAT,
    "poison_activation_interval": ACTIVATION,
    "worker_proc_alive_timeout": COMES_UP,
    "task_time_limit": 3600,
}
MINE = "w1@test"

matrix = pytest.mark.matrix


@dataclass(frozen=True)
class Fault:
    """One way of not working.

    Attributes:
        name: in the docs.
        word: in `workers`, `status`, `ready` and the metric.
        alive: what the probe says; empty: a restart is no cure, and it says nothing.
        log: what a log says; empty: nothing can be logged.
        is_of_others: it is the log of another worker.
        begin: makes it happen to the worker.
        patience: seconds for which it may be so; it is named two heartbeats later. 0: no heartbeat comes that
            could be counted, and each reader counts the seconds since the last.
    """

    name: str
    word: str
    alive: str
    log: str
    begin: Callable[[Scene], object]
    pool: str = "prefork"
    is_of_others: bool = False
    patience: float = STUCK_AFTER

    @property
    def id(self) -> str:
        return f"{self.name}-{self.pool}"


class Scene:
    """A fleet of one worker that is about to fail, and the answer of each observer about it."""

    def __init__(self, site: Site, stack: ExitStack, directory: Path) -> None:
        self.site, self.stack, self.console = site, stack, Console(site.app)
        self.file = directory / "bad"
        (directory / "tmp").mkdir()
        broker, ledger = urlsplit(site.broker_url), urlsplit(site.app.conf.poison_redis_url)
        self.broker = stack.enter_context(TcpProxy(broker.hostname or "", broker.port or 0))
        self.ledger = stack.enter_context(TcpProxy(ledger.hostname or "", ledger.port or 0))
        self.env = {
            "BROKER_URL": self.broker.url(site.broker_url),
            "TMPDIR": str(directory / "tmp"),
            "BAD_INIT": str(self.file),
        }
        self.others: list[Worker] = []
        #: Of each worker: its heartbeats since the fault began that were seen.
        self.beats: dict[str, set[float]] = {}

    def start(self, pool: str) -> Worker:
        settings = self.site.settings | {
            "poison_redis_url": self.ledger.url(self.site.app.conf.poison_redis_url)
        }
        env = self.env | {"POISON_SETTINGS": json.dumps(settings)}
        slots = 1 if pool == "solo" else 2
        # Celery's own heartbeat would wait for the answer of a broker that is half open, and the loop stand.
        options: dict[str, Any] = {"args": ["-I", "tests.fleet.wedged", "--without-heartbeat"], "env": env}
        self.mine = self.stack.enter_context(self.site.worker("w1", pool, slots, **options))
        assert self.site.result_of(self.site.send("where", 0, 0)) == MINE
        self.site.await_that(lambda: self.condition() == "working", "it works")
        return self.mine

    # --- faults ----------------------------------------------------------------------------------------

    def hold(self, what: str) -> None:
        self.file.write_text(what)
        self.site.app.control.broadcast(
            what, destination=[MINE], arguments={"path": str(self.file)}, reply=False
        )
        if what == "hold_log":
            self.site.send("where", 1, 0)  # a line of the log

    def spoil_init(self, how: str) -> None:
        self.file.write_text(how)
        for pid in self.mine.child_pids():
            os.kill(pid, signal.SIGKILL)

    def take_slots(self) -> None:
        for n in range(self.mine.concurrency):
            self.site.app.tasks["fleet.where"].apply_async((n, 3600), time_limit=LIMIT)

    def stop(self) -> None:
        self.others = [self.stack.enter_context(self.site.worker("w2"))]
        self.others[0].wait_ready()
        self.stack.enter_context(frozen(*self.mine.session_pids()))

    # --- observers -------------------------------------------------------------------------------------

    def condition(self) -> str:
        rows = self.console.json("workers")
        for row in rows:
            self.beats.setdefault(row["node"], set()).add(row["last_beat"])
        return next((row["condition"] for row in rows if row["node"] == MINE), "")

    def beats_until(self, is_named: Callable[[], bool]) -> int:
        """Wait until the fault is named; return the number of heartbeats until then.

        The worker itself sends them, or the other one, if there is one.
        """
        self.condition()
        seen, self.beats = self.beats, {}
        self.site.await_that(is_named, "it is named")
        witness = f"{self.others[0].name}@test" if self.others else MINE
        return len(self.beats[witness] - seen.get(witness, set()))

    def probe(self) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "celery_poison.alive", "--strict", "--json", MINE],
            env=os.environ | self.env,
            capture_output=True,
            timeout=PATIENCE,
        )
        return done.returncode, json.loads(done.stdout)

    def logged(self, sentence: str) -> bool:
        return any(sentence in worker.log_text() for worker in (self.others or [self.mine]))

    def numbers(self) -> dict[Any, float]:
        registry = CollectorRegistry()
        with register(self.site.app, interval=0.1, registry=registry):
            self.site.await_that(lambda: scraped(registry).get(("up", ())) == 1, "it is counted")
            return scraped(registry)


FAULTS = [
    Fault(
        "event loop stands",
        "stuck loop",
        "its event loop has stood",
        "does not work (stuck loop)",
        lambda scene: scene.hold("hold_loop"),
    ),
    Fault(
        "log's lock held",
        "stuck loop",
        "its event loop has stood",
        "",
        lambda scene: scene.hold("hold_log"),
    ),
    *(
        Fault(
            f"pool processes {how} in init",
            "no children",
            "no process of its pool",
            "does not work (no children)",
            lambda scene, how=how: scene.spoil_init(how),  # type: ignore[misc]
            patience=COMES_UP + STUCK_AFTER,
        )
        for how in ("hang", "exit")
    ),
    *(
        Fault(
            "slots stuck",
            "stuck slots",
            "every slot has been held",
            "does not work (stuck slots)",
            lambda scene: scene.take_slots(),
            pool,
            patience=LIMIT + STUCK_AFTER,
        )
        for pool in ("threads", "solo")
    ),
    Fault(
        "broker half open",
        "stuck loop",
        "",
        "does not work (stuck loop)",
        lambda scene: scene.broker.freeze(),
    ),
    Fault(
        "ledger half open",
        "silent",
        "",
        "Redis is not reachable",
        lambda scene: scene.ledger.freeze(),
        patience=0.0,
    ),
    Fault(
        "process stopped",
        "frozen",
        "it has not moved",
        "is lost (frozen, noticed as frozen)",
        Scene.stop,
        is_of_others=True,
        patience=ACTIVATION,
    ),
]
#: These are in every run.
DIAGONAL = {"pool processes exit in init-prefork", "slots stuck-threads"}


@pytest.fixture
def new_scene(
    new_site: Callable[..., Site], new_redis_url: Callable[[], str], broker_url: str, tmp_path: Path
) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:
        yield lambda **settings: Scene(
            new_site(broker_url, poison_redis_url=new_redis_url(), **(SETTINGS | settings)), stack, tmp_path
        )


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=each.id, marks=() if each.id in DIAGONAL else matrix) for each in FAULTS],
)
def test_NEW_25_each_observer_names_each_fault_or_is_documented_as_unable_to(
    new_scene: Callable[..., Scene], fault: Fault
) -> None:
    scene = new_scene()
    site, console = scene.site, scene.console
    worker = scene.start(fault.pool)
    try:
        fault.begin(scene)
        beats = scene.beats_until(
            lambda: scene.condition() == fault.word and (not fault.log or scene.logged(fault.log))
        )
        limit = (fault.patience + 2 * BEAT) // BEAT + 1  # one was on its way already
        assert not fault.patience or beats <= limit, f"{beats} heartbeats, more than {limit}"
        if fault.name == "broker half open":  # before the loop stands at what its broker must hear
            assert console.json("workers")[0]["portrait"]["unanswered"] > STUCK_AFTER
        is_silent = fault.word == "silent"
        sentence = " is silent" if is_silent else f"does not work ({fault.word}): "
        shown = console.json("status", "--check", status=2)
        assert any(f"worker {MINE}/" in each and sentence in each for each in shown["faults"]), shown[
            "faults"
        ]
        assert shown["verdict"].startswith("broken: "), shown["verdict"]
        answered = console.json("ready", MINE, status=1)
        assert any("has been silent" in why if is_silent else sentence in why for why in answered["reasons"])
        counted = ("workers", ("silent",)) if is_silent else ("stuck_workers", (fault.word,))
        assert scene.numbers()[counted] == 1
        if fault.alive:
            site.await_that(lambda: scene.probe()[0] == 1, "a restart is the cure")
            (why,) = scene.probe()[1]["reasons"]
            assert fault.alive in why
        else:
            site.await_that(lambda: not scene.probe()[0] and site.heard_for(4.0), "a restart is no cure")
        assert fault.log or not scene.logged("does not work")
        assert ("is never ended, and keeps its slot" in worker.log_text()) == (fault.pool != "prefork")
    finally:
        scene.file.unlink(missing_ok=True)
        scene.broker.heal()
        scene.ledger.heal()
        worker.kill_group()


def test_NEW_25_the_docs_say_which_observer_names_which_fault() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    for fault in FAULTS:
        alive, log = "yes" if fault.alive else "no", "yes" if fault.log else "no"
        log = "of others" if fault.is_of_others else log
        row = rf"^\| {re.escape(fault.name)} \| `{fault.word}` \| {alive} \| {log} \|$"
        assert re.search(row, text, re.MULTILINE), row


#: Seconds for which tasks run that are longer than any patience there.
LONG = 30.0


@matrix
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_NEW_25_nothing_of_that_is_said_of_a_fleet_that_works(
    new_scene: Callable[..., Scene], pool: str
) -> None:
    # Late heartbeats of a busy machine are another matter.
    scene = new_scene(poison_activation_interval=10.0, poison_stuck_after=3.0)
    site, console = scene.site, scene.console
    worker = scene.start(pool)
    before = len(worker.log_text())
    seen: set[Any] = set()

    def look() -> bool:
        seen.add(scene.condition())
        seen.add(scene.probe()[0] or "alive")
        seen.add(console.json("ready", MINE)["ready"])
        seen.add(not any(MINE in fault for fault in console.json("status")["faults"]))
        return True

    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        sent = [site.send("where", n, LONG) for n in range(1, worker.concurrency + 2)]
        site.await_that(lambda: look() and any(each.state == "SUCCESS" for each in sent), "long tasks end")
        seconds = [site.result_of(each) for each in sent]
    finally:
        for process in burning:
            process.kill()
            process.wait()
    assert {*seconds} == {MINE}
    site.await_that(lambda: look() and site.heard_for(6.0), "its queue is empty for a while")
    assert seen == {"working", "alive", True}
    assert "does not work" not in worker.log_text()[before:]
    assert site.nobody_is_blamed()
