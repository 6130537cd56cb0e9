"""What the guard does around a body does not depend on the classes of its task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from celery import Celery, Task

from celery_poison import guarded
from celery_poison.errors import ConfigurationError
from celery_poison.worker.task_body import surround
from tests import sampled
from tests.apps.harness import Fleet
from tests.strangers.shapes import SHAPES, WHOLE, build


@dataclass
class Strangers(Fleet):
    module = "tests.strangers.shapes_app"
    build = staticmethod(build)

    def call(self, task: str, *args: Any) -> Any:
        return self.app.tasks[task].apply_async(args)


@pytest.fixture
def strangers(assemble: Callable[..., Strangers]) -> Callable[..., Strangers]:
    return partial(assemble, Strangers)


def _is_guarded_in_full(fleet: Strangers, shapes: list[str], pool: str) -> None:
    with fleet.worker(pool=pool) as worker:
        worker.wait_ready()
        charges = [fleet.call(f"{shape}.charge", 1) for shape in shapes for _ in range(2)]
        orders = [fleet.call(f"{shape}.order") for shape in shapes]
        retried = [fleet.call(f"{shape}.again") for shape in shapes]
        for shape in shapes:
            fleet.call(f"{shape}.huge")
        for result in charges + retried:
            result.get(timeout=60)
        for order in orders:
            with pytest.raises(ValueError, match="no order"):
                order.get(timeout=60)
        fleet.await_that(
            lambda: len(fleet.quarantine.list()) == len(shapes), what="every huge one is quarantined"
        )
        kept = {(record.task, record.cause) for record in fleet.quarantine.list()}
        assert kept == {(f"{shape}.huge", "memory_error") for shape in shapes}
        # The retry's own mail leaves with its success; those of a failed body and of a first attempt do not.
        mails = [f"{shape}.mail" for shape in shapes]
        fleet.await_that(
            lambda: len([m for m in fleet.marks.all() if m.task in mails]) >= len(shapes), what="mail"
        )
        left = sorted(mark.task for mark in fleet.marks.all())
        assert left == sorted([f"{shape}.{what}" for shape in shapes for what in ("charge", "mail")])


@pytest.mark.parametrize("pool", sampled(["prefork"], ["threads", "solo"]))
def test_every_option_holds_whatever_the_classes_of_a_task_override(
    strangers: Callable[..., Strangers], redis_url: str, pool: str
) -> None:
    _is_guarded_in_full(strangers(redis_url), [*SHAPES], pool)


@pytest.mark.parametrize("whole", WHOLE)
def test_every_option_holds_whatever_class_an_app_gives_to_its_tasks(
    strangers: Callable[..., Strangers], redis_url: str, whole: str
) -> None:
    _is_guarded_in_full(strangers(redis_url, whole=whole), [whole], "prefork")


def test_a_strategy_of_its_own_is_refused_with_a_sentence() -> None:
    app = Celery("strategies", broker="memory://", set_as_current=False)

    class Batches(Task):
        def Strategy(self, *_: Any) -> None: ...

    @guarded
    @app.task(base=Batches, name="many", shared=False)
    def many() -> None: ...

    app.finalize()
    with pytest.raises(ConfigurationError, match="task 'many' has a Strategy of its own"):
        surround(app)
