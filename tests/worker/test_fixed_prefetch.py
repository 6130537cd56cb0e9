"""Where a prefetch cannot grow, what goes back later waits in the ledger, and no worker is full of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import PATIENCE
from tests.worker.conftest import Crew


@pytest.fixture
def crew(new_crew: Callable[..., Crew], rabbit_url: str) -> Crew:
    """On a quorum queue, whose consumers keep their prefetch on every RabbitMQ; here it is one message."""
    return new_crew(rabbit_url, worker_prefetch_multiplier=1, task_default_queue_type="quorum")


def _all_come_back_once(crew: Crew, *ids: str) -> None:
    crew.await_that(lambda: len(crew.events("finished")) == len(ids) + 1, "each has ended")
    crew.await_that(lambda: crew.nothing_runs() and not crew.quarantine.list(state="TBDL"), "all is over")
    starts = [mark.id for mark in crew.marks.all("asks", "start")]
    assert {id: starts.count(id) for id in ids} == dict.fromkeys(ids, 2)
    assert len(crew.events("rolled_back")) == len(ids) and not crew.quarantine.list()


def test_NEW_30_what_is_rolled_back_for_later_takes_no_place_of_a_worker_whose_prefetch_is_fixed(
    crew: Crew,
) -> None:
    with crew.worker(concurrency=1):
        later = [crew.send("asks", "much-later-once") for _ in range(2)]
        crew.await_that(lambda: crew.quarantine.queries.totals()["parked"] == 2, "both wait in the ledger")
        assert crew.send("asks", "behind").get(timeout=PATIENCE)
        order = [mark.n for mark in crew.marks.all("asks", "start")]
        assert order == ["much-later-once", "much-later-once", "behind"], "before they are due"
        (reason,) = {record.reason[:27] for record in crew.quarantine.list(state="TBDL")}
        assert reason == "put back, and parked until "
        _all_come_back_once(crew, *(each.id for each in later))


def test_NEW_30_a_worker_that_is_killed_before_it_acknowledges_what_it_has_parked_runs_it_no_third_time(
    crew: Crew,
) -> None:
    crew.module = "tests.worker.dies_parking"
    later = crew.send("asks", "much-later-once")
    with crew.supervise(concurrency=1):
        crew.await_that(lambda: crew.marks.all("parking", "dies"), "killed")
        assert crew.send("asks", "behind").get(timeout=PATIENCE)
        assert later.get(timeout=PATIENCE)
        _all_come_back_once(crew, later.id)
