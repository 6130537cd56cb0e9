"""How a dispatcher waits for a pool to become empty: with fakes for consumer, pool and clock."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from celery_poison.settings import Settings
from celery_poison.worker.dispatcher import Dispatcher


class Request(SimpleNamespace):
    """One that Celery can keep in its sets."""

    __hash__ = object.__hash__


def test_NEW_25_while_a_suspect_waits_for_a_process_of_the_pool_there_is_no_storm_of_forks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked, later = [1000.0], list[float](), list[Callable[[], None]]()
    monkeypatch.setattr("celery_poison.worker.dispatcher.monotonic", lambda: now[0])
    consumer = SimpleNamespace(
        on_task_request=state.reserved_requests.add,
        timer=SimpleNamespace(call_after=lambda seconds, look: later.append(look)),
        pool=SimpleNamespace(maintain_pool=lambda: asked.append(now[0])),
    )
    parts: Any = SimpleNamespace(takes=lambda request: False, make_wait=lambda must_wait: None, waiting=())
    dispatcher = Dispatcher(consumer, Settings(observe_only=True), parts, parts, parts, parts, parts)

    def watch(seconds: float) -> list[float]:
        asked.clear()
        begun = now[0]
        while now[0] < begun + seconds and later:
            now[0] += 0.02
            later.pop()()
        return [at - begun for at in asked]

    suspect, other = Request(runs_alone=True, needs_idle_worker=False), Request(runs_alone=True)
    other.needs_idle_worker = False
    state.reserved_requests.add(suspect)
    dispatcher(suspect)
    moments = watch(60.0)
    assert moments[0] < 0.05 and len([at for at in moments if at < 5.0]) < 10, "a dead process is found soon"
    assert len([at for at in moments if at >= 5.0]) < 14, "and then as rarely as by the pool itself"
    state.reserved_requests.discard(suspect)
    assert not watch(1.0)
    state.reserved_requests.add(other)
    dispatcher(other)
    assert watch(1.0)[0] < 0.05, "the next one begins anew"
    state.reserved_requests.discard(other)
