"""What older Celery does otherwise, and what is done about it; on any Celery."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery.worker import state

from celery_poison.settings import Settings
from celery_poison.worker.dispatcher import Dispatcher
from celery_poison.worker.pool_processes import keep_what_runs
from celery_poison.worker.request import acks_end


class Job:
    """A task in the pool, as billiard keeps it."""

    def __init__(self, *, accepted: bool) -> None:
        self._accepted = accepted
        self.has_ended = False

    def ready(self) -> bool:
        return self.has_ended


class Pool:
    """Celery's prefork pool of 5.5: a lost connection makes it forget all its tasks."""

    def __init__(self, *jobs: Job) -> None:
        self._pool = SimpleNamespace(_cache=dict(enumerate(jobs)), _fileno_to_outq={})

    def flush(self) -> None:
        self._pool._cache.clear()


def test_a_lost_connection_makes_celery_5_5_forget_no_task_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery, "VERSION", (5, 5, 3, "", ""))
    runs, ended, waits = Job(accepted=True), Job(accepted=True), Job(accepted=False)
    pool = Pool(runs, ended, waits)
    keep_what_runs(pool)
    keep_what_runs(pool)
    ended.has_ended = True
    pool.flush()
    assert list(pool._pool._cache.values()) == [runs]


def test_newer_celery_keeps_them_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celery, "VERSION", (5, 6, 0, "", ""))
    pool = Pool(Job(accepted=True))
    keep_what_runs(pool)
    assert "flush" not in vars(pool)


@pytest.mark.parametrize(
    ("task", "failure", "timeout"),
    [
        (SimpleNamespace(acks_on_failure_or_timeout=True), True, True),
        (SimpleNamespace(acks_on_failure_or_timeout=False), False, False),
        (
            SimpleNamespace(acks_on_failure_or_timeout=True, acks_on_failure=True, acks_on_timeout=False),
            True,
            False,
        ),
    ],
)
def test_what_becomes_of_a_failure_is_asked_in_the_words_of_that_celery(
    task: Any, failure: bool, timeout: bool
) -> None:
    assert (acks_end(task, timed_out=False), acks_end(task, timed_out=True)) == (failure, timeout)


class Request:
    """Of an unguarded task, or of a suspect that no cell can try."""

    def __init__(self, *, runs_alone: bool = False) -> None:
        self.runs_alone = runs_alone
        self.needs_idle_worker = False


@pytest.fixture
def requests_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "reserved_requests", set())
    monkeypatch.setattr(state, "active_requests", set())


@pytest.mark.usefixtures("requests_of_this_test")
def test_what_runs_still_runs_when_celery_forgot_at_a_lost_connection_that_it_is_reserved() -> None:
    """Before 5.7 it is among the active requests only; before 5.6 nobody who asked for it is called again."""
    begun, timers = list[Any](), list[Callable[[], None]]()
    cells: Any = SimpleNamespace(make_wait=lambda held: None, takes=lambda request: False, waiting=())
    marks: Any = None
    consumer = SimpleNamespace(
        on_task_request=begun.append,
        timer=SimpleNamespace(call_after=lambda _, call: timers.append(call)),
        pool=SimpleNamespace(maintain_pool=lambda: None),
    )
    dispatcher = Dispatcher(consumer, Settings(observe_only=True), marks, marks, marks, cells, marks)
    running, alone, late = Request(), Request(runs_alone=True), Request()
    state.active_requests.add(running)  # and no longer among the reserved ones
    state.reserved_requests.add(alone)
    dispatcher(alone)
    assert begun == [], "something runs beside it"
    dispatcher.clear()
    timers.clear()  # forgotten with the connection

    dispatcher(alone)
    assert begun == [] and len(timers) == 1
    state.active_requests.clear()
    timers.pop()()
    assert begun == [alone]
    state.reserved_requests.clear()
    state.active_requests.add(alone)
    state.reserved_requests.add(late)
    dispatcher(late)
    assert begun == [alone], "it still runs, alone"
    state.active_requests.clear()
    timers.pop()()
    assert begun == [alone, late]
