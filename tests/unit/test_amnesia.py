"""When a Redis may have forgotten something, and what waits until it has been told again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.worker.arrival.door import Door
from celery_poison.worker.clerk import Again
from celery_poison.worker.presence.amnesia import Amnesia

GRACE, TELL_AGAIN = 10.0, 1.0


def _amnesia(run_id: str = "a", up: float = 3600.0) -> Amnesia:
    amnesia = Amnesia(GRACE, TELL_AGAIN)
    amnesia.broker_forgets = True
    amnesia.met(run_id, up)
    return amnesia


def test_a_redis_that_has_been_running_for_long_is_trusted() -> None:
    amnesia = _amnesia()
    assert not amnesia.is_suspected and not amnesia.patience
    assert not amnesia.met("a") and not amnesia.met(""), "it is the same; nobody may ask"


def test_a_redis_that_was_started_a_moment_ago_is_not() -> None:
    assert _amnesia(up=GRACE / 2).is_suspected and not _amnesia(up=GRACE / 2).patience
    assert _amnesia(up=0).patience


def test_another_redis_is_not_trusted_for_a_while() -> None:
    amnesia = _amnesia()
    assert amnesia.met("b") and amnesia.is_suspected
    assert 0 < amnesia.patience <= TELL_AGAIN


def test_a_lost_broker_connection_makes_first_deliveries_suspect_only_where_the_broker_forgets() -> None:
    amnesia = _amnesia()
    amnesia.reconnected()
    assert amnesia.is_suspected and not amnesia.patience
    amnesia.broker_forgets = False
    assert not amnesia.is_suspected


def test_TP1_8_nothing_is_judged_before_all_workers_have_told_again_what_they_run() -> None:
    heard: list[str] = []
    amnesia = _amnesia()
    recorded = SimpleNamespace(run_id="b", kept=None)
    runtime: Any = SimpleNamespace(
        amnesia=amnesia,
        epoch=1,
        activation_ms=1000,
        policies={},
        ledger=SimpleNamespace(look=lambda *_: recorded),
        following=SimpleNamespace(heard_from=lambda run_id: heard.append(run_id) or amnesia.met(run_id)),
    )
    delivery: Any = SimpleNamespace(epoch=1, mid="m", start=SimpleNamespace(id="id"))
    with pytest.raises(Again) as again:
        Door(runtime, lambda message: None)._judge(delivery)
    assert heard == ["b"] and 0 < again.value.pause <= TELL_AGAIN
