"""Sentinel makes a replica the master, while workers run with broker and ledger behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness.servers import SentinelSet
from tests.outage.conftest import Site

pytestmark = pytest.mark.usefixtures("redis_server")


@pytest.fixture
def redises() -> Iterator[SentinelSet]:
    with SentinelSet() as redises:
        yield redises


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(True, id="the master died", marks=pytest.mark.matrix),
        pytest.param(False, id="the master lives on"),
    ],
)
def test_EMS_8_workers_follow_the_master_and_what_runs_goes_on(
    redises: SentinelSet, new_site: Callable[..., Site], kill: bool
) -> None:
    options = {"broker_transport_options": redises.transport_options}
    site = new_site(redises.url(3), **options)
    with site.worker("w1") as w1, site.worker("w2") as w2:
        w1.wait_ready(), w2.wait_ready()
        sent = [site.send("where", n, 12) for n in range(2)]
        site.await_that(lambda: len(site.starts()) == 2, "two run for long")
        for n in range(100, 130):
            site.send("where", n, 0.2)
        site.await_that(lambda: len(site.ends()) > 5, "others beside them")
        redises.fail_over(kill=kill)
        site.await_that(lambda: site.on_record() >= 2, "the new master is told what runs")
        site.await_that(lambda: site.known_workers() == {"w1", "w2"}, "and who lives")
        assert not {0, 1} & {*site.ends()}, "this was to be seen while they run"
        site.await_that(lambda: len(site.ends()) == 32, "the queue goes on")
        site.await_that(lambda: site.ends()[0] and site.ends()[1], "they end")
        assert {site.result_of(result)[:1] for result in sent} == {"w"}
        assert site.starts()[0] == site.starts()[1] == 1, "they ran once"
        assert not site.overlapped()
        assert site.nobody_is_blamed()
        if not kill:
            redises.wait_whole()  # what this test sends to the old master before that is lost
        site.still_guards(w1, w2)
