"""What Celery failed before the body of its task began is not done: its message goes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.testing import RedisServer
from tests import sampled
from tests.apps.harness import Fleet

COUNT = 12


@pytest.mark.parametrize("pool", sampled(["threads"], ["prefork", "gevent", "solo"]))
def test_NEW_5_what_its_result_backend_kept_from_beginning_runs_when_that_is_back(
    new_fleet: Callable[..., Fleet], redis_url: str, new_server: Callable[..., RedisServer], pool: str
) -> None:
    backend = new_server()
    fleet = new_fleet(redis_url, backend_url=backend.url(), task_track_started=True)
    results = [fleet.send("healthy", number) for number in range(COUNT)]
    backend.kill()

    def was_told(id: str) -> bool:
        """Whether its failure was stored: the backend came back between the two attempts of Celery's."""
        return bool(fleet.app.backend.get_task_meta(id, cache=False)["status"] == "FAILURE")

    with fleet.worker(pool=pool, concurrency=4) as worker:
        worker.wait_ready()
        fleet.await_that(lambda: len(fleet.events("interrupted")) >= 4, "Celery has failed some")
        assert not fleet.marks.all()
        backend.start()

        def is_over() -> bool:
            ran = fleet.marks.count("healthy", "end")
            return all(ran[n] or was_told(result.id) for n, result in enumerate(results))

        fleet.await_that(is_over, "all have run, or their callers know")
        ran = fleet.marks.count("healthy", "start")
        # One for each slot may have met the moment in which the backend came back.
        assert len(ran) >= COUNT - 4
        assert set(ran.values()) == {1}
    assert {event["cause"] for event in fleet.events("interrupted")} == {"not_reached"}
    assert not fleet.events("crashed", "rolled_back", "quarantined")
    assert not fleet.quarantine.list()


@pytest.mark.parametrize("pool", sampled(["threads"], ["prefork"]))
def test_what_would_fail_celery_again_and_again_does_not_go_back(
    new_fleet: Callable[..., Fleet], redis_url: str, pool: str
) -> None:
    """Its arguments cannot be stored with its state, be that STARTED or FAILURE."""
    fleet = new_fleet(redis_url, task_track_started=True, result_extended=True)
    with fleet.worker(pool=pool, concurrency=1) as worker:
        worker.wait_ready()
        fleet.send("unpickled", object(), serializer="pickle")
        fleet.send("healthy", 1)
        fleet.await_that(lambda: fleet.marks.count("healthy", "end"), "the next one runs")
    assert not fleet.marks.all("unpickled")
    assert not fleet.events("interrupted")
