"""A task with a Request class of its own is guarded, or the worker says in one sentence why it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from celery import Celery, Task
from celery.worker.request import Request

from celery_poison import guarded
from celery_poison.errors import ConfigurationError
from celery_poison.worker.combining import combine
from tests import sampled
from tests.apps.harness import Fleet
from tests.strangers.requests_app import KINDS, build


@dataclass
class Requests(Fleet):
    module = "tests.strangers.requests_app"
    build = staticmethod(build)


@pytest.fixture
def requests(assemble: Callable[..., Requests], broker_url: str) -> Requests:
    return partial(assemble, Requests)(broker_url)


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_a_poison_is_convicted_whatever_its_request_class_overrides(requests: Requests) -> None:
    tasks = requests.app.tasks
    with requests.worker() as worker:
        worker.wait_ready()
        works = [tasks[f"{kind}.works"].delay(number) for number, kind in enumerate(KINDS)]
        assert [result.get(timeout=60) for result in works] == [*range(len(KINDS))]
        for kind in KINDS:
            tasks[f"{kind}.dies"].delay()
            tasks[f"{kind}.hangs"].delay()
        expected = {(f"{kind}.dies", "signal:9", 2) for kind in KINDS}
        expected |= {(f"{kind}.hangs", "failures", 1) for kind in KINDS}
        requests.await_that(lambda: len(requests.quarantine.list()) == len(expected), "all are quarantined")
        kept = requests.quarantine.list()
        assert {(record.task, record.cause, record.deliveries) for record in kept} == expected
        requests.await_that(
            lambda: not [*requests.quarantine.queries.running()], "the ledger forgets their starts"
        )
    heard = requests.marks.count
    # The user's own methods were called as without us: at each death, and at each time limit.
    assert heard("failure", "start")["manual.dies"] == heard("failure", "start")["silent.dies"] == 2
    assert heard("failure", "start")["ours.dies"] == 2
    assert heard("timeout", "start")["manual.hangs"] == heard("timeout", "start")["silent.hangs"] == 1
    assert heard("acknowledged", "start")["manual.works"] == 1
    assert not heard("never", "start")


class Taken(Request):
    def put_back_now(self) -> None: ...


@pytest.mark.parametrize(
    ("request_class", "said"),
    [
        (Taken, r"task 'one': its Request class .*Taken defines put_back_now, which guarded requests need"),
        (dict, r"is not derived from celery.worker.request.Request, so that it cannot be guarded"),
        (f"{__name__}:Taken", "rename it"),
    ],
)
def test_what_cannot_be_combined_is_refused_with_a_sentence(request_class: Any, said: str) -> None:
    app = Celery("refused", broker="memory://", set_as_current=False)

    @guarded
    @app.task(base=type("Base", (Task,), {"Request": request_class}), name="one", shared=False)
    def one() -> None: ...

    app.finalize()
    with pytest.raises(ConfigurationError, match=said):
        combine(app)
