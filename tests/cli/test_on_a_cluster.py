"""What people and programs read and do is the same where the ledger is on a cluster (NEW-24)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from celery_poison.ledger.keys import Keys
from celery_poison.metrics import register
from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import ROOT, Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.fleet.standalone import MonitorProcess
from tests.flower.served import ANN, FlowerServer
from tests.harness.cluster import ClusterSet
from tests.metrics.conftest import scraped


@pytest.fixture(scope="module")
def nodes() -> Iterator[ClusterSet]:
    with ClusterSet() as nodes:
        yield nodes


@pytest.fixture
def cluster(nodes: ClusterSet) -> Iterator[ClusterSet]:
    """A cluster whose ledger is empty: it belongs to one app."""
    yield nodes
    with nodes.client() as client:
        client.unlink(*client.scan_iter(f"{Keys().prefix}*"))


class Verb:
    """A verb that runs until the test ends it; `said` is what it has printed."""

    def __init__(self, fleet: Fleet, entry_points: Path, *words: str) -> None:
        self._log = fleet.directory / f"{words[0]}.log"
        path = os.pathsep.join([str(entry_points), str(ROOT)])
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", fleet.module, "poison", *words],
                env=os.environ | fleet.environ() | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        said = self._log.read_text()
        assert self.process.poll() is None, said
        return said

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


def test_NEW_24_verbs_acts_outbox_and_pipeline_work_before_and_after_a_move(
    new_fleet: Callable[..., Fleet], redis_url: str, cluster: ClusterSet
) -> None:
    fleet = new_fleet(redis_url, poison_redis_url=cluster.url())
    keeper, console = Keeper(fleet.app), Console(fleet.app)
    keeper.sign()
    kept = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    levels = {row["check"]: row["level"] for row in console.json("doctor")}
    assert levels | {"failover": "ok", "coverage": "warn", "presence": "ok", "permissions": "ok"} == levels
    assert {"version": "ok", "role": "ok", "moves": "ok"}.items() <= levels.items()
    for move in (lambda: None, cluster.move, cluster.fail_over):
        move()
        rows = wait_until(lambda: console.json("list"), what="it is read")
        assert sorted(row["mid"] for row in rows) == sorted(kept)
        assert [row["count"] for row in console.json("groups")] == [len(kept)]
        assert console.json("show", rows[0]["id"])["mid"] in kept
        console.run("status")
    fleet.app.tasks["fleet.healthy"].apply_async((3,), outbox=True)
    assert [lane["waiting"] for lane in console.json("outbox", "status")["destinations"]] == [1]
    assert "moved to quarantine" in console.out("journal", "tail")
    console.run("release", rows[0]["id"])
    console.run("discard", rows[1]["id"])
    assert console.json("list") == []
    keeper.close()


def test_NEW_24_whoever_stays_connected_follows_the_slot_of_a_cluster(
    new_fleet: Callable[..., Fleet], redis_url: str, cluster: ClusterSet, entry_points: Path
) -> None:
    """The standalone monitor, the relay, Flower, the metrics, and who follows the journal."""
    fleet = new_fleet(redis_url, poison_redis_url=cluster.url())
    registry = CollectorRegistry()
    with ExitStack() as stack:
        keeper = stack.enter_context(closing(Keeper(fleet.app)))
        keeper.sign()
        kept = [keeper.send_and_keep("fleet.healthy", n) for n in range(3)]
        monitor = stack.enter_context(MonitorProcess(fleet, entry_points, "monitor", "--metrics-port", "0"))
        relay = stack.enter_context(closing(Verb(fleet, entry_points, "outbox", "run")))
        followed = stack.enter_context(closing(Verb(fleet, entry_points, "journal", "tail", "--follow")))
        flower = stack.enter_context(closing(FlowerServer(fleet, user=ANN)))
        stack.enter_context(register(fleet.app, interval=0.1, registry=registry))
        flower.wait_ready()
        monitor.await_active()
        wait_until(lambda: "the relay sends" in relay.said and "moved to quarantine" in followed.said)

        def await_all(mid: str, number: int) -> None:
            of_kept = "quarantine_messages", ("signal:9", "celery", "fleet.healthy")
            wait_until(lambda: scraped(registry).get(of_kept) == len(kept) - number, what="it is scraped")
            wait_until(lambda: f'"m-{mid}"' in flower.get("/poison").text, what=flower.log_text)
            wait_until(lambda: flower.get(f"/poison/message/{mid}").status == 200, what=flower.log_text)
            done = flower.post_json("/api/poison/act/release", {"ids": [mid], "note": f"by-{number}"}).json
            assert done["done"] == 1, done
            wait_until(lambda: f"by-{number}" in followed.said, what=lambda: followed.said)
            fleet.app.tasks["fleet.healthy"].apply_async((number,), outbox=True)
            wait_until(lambda: len(keeper.raw_on_redis()) == 2 * (number + 1), what=lambda: relay.said)
            wait_until(lambda: "celery_poison_up 1.0" in monitor.metrics, what=monitor.log_text)
            wait_until(lambda: fleet.quarantine.queries.monitor() == monitor.name, what=monitor.log_text)

        await_all(kept[0], 0)
        cluster.fail_over()
        await_all(kept[1], 1)
        cluster.lose_owner()
        await_all(kept[2], 2)
        assert fleet.quarantine.list() == []
        assert monitor.end() == 0, monitor.log_text()
