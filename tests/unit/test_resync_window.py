"""When a Redis may have forgotten something, and what waits until it has been told again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_poison.broker.amqp.kind import AmqpBroker
from celery_poison.broker.other import MemoryBroker
from celery_poison.broker.redis.kind import RedisBroker
from celery_poison.worker.admission import Admission
from celery_poison.worker.resync import ResyncWindow
from celery_poison.worker.threads import Retry
from tests.sites import on_site

GRACE, TELL_AGAIN = 10.0, 1.0


def _resync_window(run_id: str = "a", up: float = 3600.0) -> ResyncWindow:
    resync_window = ResyncWindow(GRACE, TELL_AGAIN)
    resync_window.broker = RedisBroker()
    resync_window.met(run_id, up)
    return resync_window


def test_a_redis_that_has_been_running_for_long_is_trusted() -> None:
    resync_window = _resync_window()
    assert not resync_window.is_suspected and not resync_window.patience
    assert not resync_window.met("a") and not resync_window.met(""), "it is the same; nobody may ask"


def test_a_redis_that_was_started_a_moment_ago_is_not() -> None:
    assert _resync_window(up=GRACE / 2).is_suspected and not _resync_window(up=GRACE / 2).patience
    assert _resync_window(up=0).patience


def test_another_redis_is_not_trusted_for_a_while() -> None:
    resync_window = _resync_window()
    assert resync_window.met("b") and resync_window.is_suspected
    assert 0 < resync_window.patience <= TELL_AGAIN


def test_a_lost_broker_connection_makes_first_deliveries_suspect_only_where_the_broker_forgets() -> None:
    resync_window = _resync_window()
    resync_window.reconnected()
    assert resync_window.is_suspected and not resync_window.patience
    resync_window.broker = AmqpBroker()
    assert not resync_window.is_suspected


def test_NEW_30_of_a_broker_that_flags_nothing_even_a_first_delivery_may_have_come_before() -> None:
    resync_window = _resync_window()
    resync_window.broker = MemoryBroker()
    assert resync_window.is_suspected


def test_TP1_8_nothing_is_judged_before_all_workers_have_told_again_what_they_run() -> None:
    heard: list[str] = []
    resync_window = _resync_window()
    recorded = SimpleNamespace(run_id="b", kept=None)
    parts: dict[str, Any] = {
        "loop": SimpleNamespace(epoch=1),
        "settings": SimpleNamespace(activation_interval=1.0),
        "ledger": SimpleNamespace(
            messages=SimpleNamespace(
                look_many=lambda messages, _: [recorded for _ in messages], claim_many=lambda claims: []
            )
        ),
        "resync": SimpleNamespace(
            heard_from=lambda run_id: heard.append(run_id) or resync_window.met(run_id),
            window=resync_window,
        ),
    }
    start = SimpleNamespace(id="id", token="b.1")
    delivery: Any = SimpleNamespace(epoch=1, mid="m", release=0, start=start, blocked="", caught=None)
    (again,) = on_site(Admission, **parts).judge([delivery])
    assert isinstance(again, Retry) and heard == ["b"] and 0 < again.pause <= TELL_AGAIN
