"""A worker's endpoints: nothing stops that Redis did not allow, and what stops goes on (WAS-6)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.decide import End
from celery_poison.errors import LedgerUnavailable
from celery_poison.extensions.holds import pausing as module
from celery_poison.extensions.holds.pausing import Endpoints
from celery_poison.settings import PREFIX, Settings
from tests.sites import site


class Stub:
    """As much of a worker as its endpoints meet; its background runs each job at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], bool], **given: Any) -> None:
        self.now, self.changes, self.told, self.ended = 0.0, 0, list[str](), list[str]()
        self.asked: list[int] = []
        workers = [SimpleNamespace(alive=True, all_queues=["q"]) for _ in range(4)]
        monkeypatch.setattr(module, "HoldPauses", lambda ledger: ledger)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        ledger: Any = SimpleNamespace(
            read=SimpleNamespace(workers=lambda ms: workers),
            suspend=lambda node, queue, *, most, **told: (self.asked.append(most), answer())[1],
            end_suspension=lambda node, queue, **told: self.ended.append(queue),
        )
        me: Any = SimpleNamespace(node="w1@h", worker="w1@h/b")
        loop: Any = SimpleNamespace(call_in_loop=lambda call: call())
        announce: Any = SimpleNamespace(fleet=lambda name, facts: self.told.append(name))
        background: Any = SimpleNamespace(do=self._do)
        conf = {"suspend_after_failures": 2, "suspend_for": 60.0, **given}
        settings = Settings.from_conf({PREFIX + name: value for name, value in conf.items()})
        self.endpoints = Endpoints(
            site(
                settings=settings,
                ledger=ledger,
                me=me,
                background=background,
                loop=loop,
                announce=announce,
            ),
            self._changed,
        )

    def _changed(self) -> None:
        self.changes += 1

    def _do(self, job: Callable[[], object], unavailable: Callable[[], bool] | None = None) -> None:
        try:
            job()
        except LedgerUnavailable:
            assert unavailable is not None and not unavailable()

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.endpoints.ended("q", object(), End.RAISED)


def _away() -> bool:
    raise LedgerUnavailable("away")


@pytest.mark.parametrize("answer", [lambda: False, _away])
def test_WAS_6_what_redis_does_not_allow_or_does_not_hear_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], bool]
) -> None:
    worker = Stub(monkeypatch, answer)
    worker.fail(2)
    assert not worker.endpoints.stops("q") and not worker.told and worker.asked == [2], "half of four"
    worker.fail(1)
    assert len(worker.asked) == 1, "it counts anew"
    worker.fail(1)
    assert len(worker.asked) == 2


def test_WAS_6_the_share_of_failures_that_suspends_and_that_of_the_fleet_are_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = {"suspend_after_failures": 0, "suspend_failure_ratio": 0.5, "suspend_share": 1.0}
    worker = Stub(monkeypatch, lambda: True, **bounds)
    for _ in range(5):
        worker.endpoints.ended("q", object(), End.RETURNED)
    worker.fail(4)
    assert not worker.endpoints.stops("q"), "of nine runs nothing is said"
    worker.fail(1)
    assert worker.endpoints.stops("q") and worker.asked == [4], "all four may be"


def test_WAS_6_its_time_is_over_also_while_redis_is_away_and_one_request_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, probe, other = Stub(monkeypatch, lambda: True), object(), object()
    worker.fail(2)
    assert worker.endpoints.stops("q") and not worker.endpoints.stops("another")
    assert worker.told == ["endpoint_suspended"]
    worker.now = 59.0
    worker.endpoints.look()
    assert worker.endpoints.stops("q")
    worker.now = 60.0
    worker.endpoints.look()
    assert not worker.endpoints.stops("q") and worker.ended == ["q"]
    assert worker.told == ["endpoint_suspended", "endpoint_resumed"]
    worker.endpoints.begins("q", probe)
    assert worker.endpoints.stops("q", other) and not worker.endpoints.stops("q", probe)
    worker.endpoints.ended("q", other, End.RETURNED)
    assert worker.endpoints.stops("q", other), "it had begun before"
    worker.endpoints.ended("q", probe, End.IGNORED)
    assert not worker.endpoints.stops("q", other), "that says nothing: another one probes"
    worker.endpoints.begins("q", other)
    worker.endpoints.ended("q", other, End.RETURNED)
    assert not worker.endpoints.stops("q", probe)
    worker.fail(1)
    assert len(worker.asked) == 1, "it counts from the beginning"


def test_WAS_6_a_person_ends_a_suspension_and_nothing_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Stub(monkeypatch, lambda: True)
    worker.fail(2)
    worker.endpoints.follow({"q": 50.0})
    assert worker.endpoints.stops("q")
    worker.endpoints.follow({})
    worker.endpoints.begins("q", object())
    assert not worker.endpoints.stops("q", object()) and worker.told[-1] == "endpoint_resumed"


def test_WAS_6_a_worker_that_was_started_again_stays_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Stub(monkeypatch, lambda: True)
    worker.endpoints.adopt({"q": 30.0})
    assert worker.endpoints.stops("q")
    worker.now = 30.0
    worker.endpoints.look()
    assert not worker.endpoints.stops("q")


def test_WAS_6_who_only_observes_suspends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Stub(monkeypatch, lambda: True, observe_only=True)
    worker.fail(9)
    assert not worker.asked


@pytest.mark.parametrize(
    ("everywhere", "of_q", "suspends_at"),
    [(2, {"suspend_after_failures": 4}, 4), (0, {"suspend_after_failures": 3}, 3), (2, {}, 2)],
)
def test_WAS_6_a_queue_has_bounds_of_its_own(
    monkeypatch: pytest.MonkeyPatch, everywhere: int, of_q: dict[str, Any], suspends_at: int
) -> None:
    queues = {"q": of_q, "other": {"suspend_after_failures": 1}}
    worker = Stub(monkeypatch, lambda: True, suspend_after_failures=everywhere, queues=queues)
    worker.fail(suspends_at - 1)
    assert not worker.endpoints.stops("q")
    worker.fail(1)
    assert worker.endpoints.stops("q") and not worker.endpoints.stops("other")


def test_WAS_6_a_queue_may_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Stub(monkeypatch, lambda: True, queues={"q": {"suspend_after_failures": 0}})
    worker.fail(100)
    assert not worker.endpoints.stops("q") and not worker.asked
