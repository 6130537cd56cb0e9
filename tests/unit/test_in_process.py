"""Where no real server is needed: Celery's own fixtures in process, and a Redis that is only played."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest
from celery import Celery, chain, chord, group

from celery_poison import guarded
from celery_poison.ledger import Keys, Ledger
from celery_poison.model import Start


@pytest.fixture(scope="session")
def celery_config() -> dict[str, Any]:
    return {
        "broker_url": "memory://",
        "result_backend": "cache+memory://",
        "task_always_eager": True,
        "task_store_eager_result": True,
    }


def test_NEW_8_canvas_of_guarded_tasks_works_eagerly_without_any_redis(celery_app: Celery) -> None:
    @guarded
    @celery_app.task(shared=False)
    def double(n: int) -> int:
        return 2 * n

    @guarded(max_crashes=3)
    @celery_app.task(shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    assert double.delay(2).get() == 4
    assert chain(double.s(1), double.s(), double.s())().get() == 8
    assert group(double.s(n) for n in range(3))().get() == [0, 2, 4]
    assert chord([double.s(n) for n in range(3)])(total.s()).get() == 6


def test_SAP_3_deaths_are_counted_by_a_redis_that_is_only_played() -> None:
    ledger = Ledger(fakeredis.FakeRedis(), Keys("played"))
    start = Start("R", "t1", "node/boot", 1, 1, 1, 0, "id-1", "shop.render", "q", 2, 5, 10, 1)
    for number in (1, 2):
        again = start._replace(token=f"t{number}", deliveries=number)
        assert ledger.messages.claim("m1", b"", again)
        recorded = ledger.messages.crash("m1", again, cause="signal:9", shared=False)
        assert recorded.history.strikes == number
