"""`fail` calls what a project has hung on the end of a task, in a worker, with and without one alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from celery_poison.errors import GivenUp
from tests.apps.harness import Fleet
from tests.strangers.hooks_app import build


@dataclass
class Hooked(Fleet):
    module = "tests.strangers.hooks_app"
    build = staticmethod(build)

    def called(self) -> list[tuple[str, str, Any]]:
        return [(mark.task, mark.id, mark.n) for mark in self.marks.all()]

    def give_up(self) -> Any:
        self.await_that(lambda: self.quarantine.list(), "it is in quarantine")
        (record,) = self.quarantine.list()
        (outcome,) = self.quarantine.fail([record.mid], note="hopeless")
        assert outcome.done, outcome
        return record


@pytest.fixture
def hooked(assemble: Callable[..., Hooked], broker_url: str) -> Hooked:
    return partial(assemble, Hooked)(broker_url)


def _all_of(id: str, args: list[Any], kwargs: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [
        ("on_failure", id, ["GivenUp", *args, kwargs, True]),
        ("task_failure", id, "GivenUp"),
        ("after_return", id, ["FAILURE", "GivenUp"]),
    ]


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_SAP_7_what_hangs_on_the_end_of_a_task_is_called_once_in_a_worker(hooked: Hooked) -> None:
    result = hooked.app.tasks["hooks.crash"].delay("row", more=7)
    with hooked.worker() as worker:
        worker.wait_ready()
        hooked.give_up()
        with pytest.raises(GivenUp, match="hopeless"):
            result.get(timeout=60)
        expected = _all_of(result.id, ["row"], {"more": 7})
        hooked.await_that(lambda: len(hooked.called()) >= 3, "all three are called")
        hooked.await_that(lambda: not [*hooked.quarantine.queries.running()], "nothing runs")
    assert hooked.called() == expected


def test_SAP_7_without_a_worker_its_caller_hears_at_once_and_the_rest_is_called_by_the_next_one(
    hooked: Hooked,
) -> None:
    result = hooked.app.tasks["hooks.crash"].apply_async(("row",), serializer="pickle")
    with hooked.worker() as worker:
        worker.wait_ready()
        hooked.await_that(lambda: hooked.quarantine.list(), "it is in quarantine")
    hooked.give_up()
    with pytest.raises(GivenUp):
        result.get(timeout=60)
    assert not hooked.called()
    with hooked.worker("w2") as worker:
        worker.wait_ready()
        hooked.await_that(lambda: len(hooked.called()) >= 3, "all three are called")
    assert hooked.called() == _all_of(result.id, ["row"], {})


def _called_of(hooked: Hooked, how: str, says: str = "") -> tuple[list[Any], list[Any]]:
    """Return what is called of a task that is given up, and what should be, once its worker's log says so."""
    result = hooked.app.tasks["hooks.crash"].delay(how)
    with hooked.worker() as worker:
        worker.wait_ready()
        hooked.give_up()
        hooked.await_that(lambda: len(hooked.called()) >= 4, "all three are called, and one more")
        hooked.await_that(lambda: says in worker.log_text(), "the log says so")
        return hooked.called(), _all_of(result.id, [how], {})


def test_SAP_7_if_the_worker_dies_in_on_failure_it_is_called_again(hooked: Hooked) -> None:
    called, (first, *rest) = _called_of(hooked, "kills")
    assert called == [first, first, *rest]


def test_SAP_7_an_on_failure_that_raises_keeps_nothing_from_being_called(hooked: Hooked) -> None:
    called, expected = _called_of(hooked, "raises", "a bug in on_failure")
    assert called[:3] == expected


def test_SAP_7_a_task_that_no_worker_knows_any_more_says_so(hooked: Hooked) -> None:
    hooked.app.tasks["hooks.crash"].delay("row")
    with hooked.worker() as worker:
        worker.wait_ready()
        hooked.await_that(lambda: hooked.quarantine.list(), "it is in quarantine")
    with hooked.worker("w2", env={"RENAMED": "1"}) as worker:
        worker.wait_ready()
        hooked.give_up()
        said = "no worker of the queue celery knows the task hooks.crash any more"
        hooked.await_that(lambda: said in worker.log_text(), "its log says so")
    assert not hooked.called()
