"""What people and programs read and do is the same where the ledger is on a cluster (NEW-24)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_poison.ledger.keys import Keys
from celery_poison.pipeline.ingest.stream import Stream
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.harness.cluster import ClusterSet


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterSet]:
    with ClusterSet() as cluster:
        yield cluster


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
    assert Stream(cluster.url(), Keys().journal).tip().length > 2
    console.run("release", rows[0]["id"])
    console.run("discard", rows[1]["id"])
    assert console.json("list") == []
    keeper.close()
