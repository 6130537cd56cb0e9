"""Where what is quarantined goes: every form of the setting, and what it means for each cause."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_poison import PoisonTask, causes, guarded
from celery_poison.errors import ConfigurationError
from celery_poison.policy import Policy
from celery_poison.rules.destinations import SYSTEM_ROUTE, Route, route
from celery_poison.settings import Settings

LANE = {"oom": "bigmem", "failures": None, "*": "dead.letters"}


def _route(destination: Any, cause: str = "signal:9", timeout: float = 5.0, **more: Any) -> Route:
    facts = {"came_from": "celery", "was_sent": False} | more
    return route(destination, cause, blocked_retry_timeout=timeout, **facts)


@pytest.mark.parametrize(
    ("destination", "cause", "goes"),
    [
        ("system", "oom", SYSTEM_ROUTE),
        ("dead.letters", "oom", Route("dead.letters")),
        ("dead.letters", "failure", Route("dead.letters")),
        (LANE, "oom", Route("bigmem")),
        (LANE, "signal:9", Route("dead.letters")),
        (LANE, "failures", Route(retry_ms=5000)),
        ({"oom": "bigmem"}, "signal:9", SYSTEM_ROUTE),
        (None, "signal:9", Route(retry_ms=5000)),
    ],
)
def test_WAS_4_the_setting_says_where_each_cause_goes(destination: Any, cause: str, goes: Route) -> None:
    assert _route(destination, cause) == goes


@pytest.mark.parametrize(("timeout", "goes"), [(0, Route(retry_ms=0)), (-1, SYSTEM_ROUTE)])
def test_WAS_5_the_timeout_may_be_at_once_or_never(timeout: float, goes: Route) -> None:
    assert _route(None, timeout=timeout) == goes


def test_WAS_5_what_was_not_convicted_waits_for_a_person_and_so_does_what_kills_while_it_is_received() -> (
    None
):
    for cause in (*causes.NO_CONVICTIONS, causes.RECEIVE):
        assert _route(None, cause) == SYSTEM_ROUTE


@pytest.mark.parametrize("destination", ["dead.letters", LANE, {causes.HELD: "bigmem"}])
def test_NEW_27_what_a_person_holds_goes_nowhere_where_a_worker_would_run_it(destination: Any) -> None:
    assert _route(destination, causes.HELD) == SYSTEM_ROUTE


def test_NEW_11_a_message_goes_to_a_named_destination_once_and_never_to_where_it_came_from() -> None:
    assert _route(LANE, "oom", was_sent=True) == SYSTEM_ROUTE
    assert _route(LANE, "oom", came_from="bigmem") == SYSTEM_ROUTE


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"oomm": "bigmem"}, "'oomm' is no cause"),
        ({7: "bigmem"}, "'7' is no cause|7 is no cause"),
        ({"oom": 7}, "or a mapping of causes"),
        ({"oom": {"*": "bigmem"}}, "or a mapping of causes"),
        ({"*": "two words"}, "or a mapping of causes"),
    ],
)
def test_WAS_4_a_mapping_that_means_nothing_stops_the_worker(value: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Settings.from_conf({"poison_exception_destination": value})


def test_WAS_4_the_options_of_a_task_win_and_none_is_one_of_them() -> None:
    app = Celery("unit", broker="redis://localhost:1", set_as_current=False)
    settings = Settings.from_conf({"poison_exception_destination": "dead.letters"})

    @guarded(exception_destination=None, blocked_retry_timeout=0)
    @app.task(shared=False, name="stays")
    def stays() -> None: ...

    @app.task(shared=False, name="own", base=PoisonTask, exception_destination={"oom": "bigmem"})
    def own() -> None: ...

    @guarded
    @app.task(shared=False, name="as_set")
    def as_set() -> None: ...

    app.finalize()
    found = {name: Policy.of(app.tasks[name], settings) for name in ("stays", "own", "as_set")}
    assert [found["stays"].exception_destination, found["stays"].blocked_retry_timeout] == [None, 0]
    assert found["own"].exception_destination == {"oom": "bigmem"}
    assert found["as_set"].exception_destination == "dead.letters"
