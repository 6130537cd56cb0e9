"""Flower's /metrics tells of the quarantine too, and does not wait for Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_poison.testing import RedisServer, wait_until
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve


def test_metrics_stand_beside_Flowers_own_and_stay_while_the_ledger_does_not_answer(
    new_fleet: Any, new_server: Callable[..., RedisServer], serve: Serve, broker_url: str
) -> None:
    ledger = new_server()
    fleet = new_fleet(broker_url, poison_redis_url=ledger.url())
    keeper = Keeper(fleet.app)
    keeper.sign()
    keeper.send_and_keep("fleet.healthy", 1)
    keeper.close()
    flower = serve("--debug", of=fleet, prefix="flower")

    def told() -> str:
        answer = flower.get("/metrics")
        assert answer.status == 200
        return answer.text

    kept = 'celery_poison_quarantine_messages{cause="signal:9",queue="celery",task="fleet.healthy"} 1.0'
    wait_until(lambda: kept in told(), what=told)
    assert "python_info" in told(), "what else is in the registry of the process"
    ledger.pause()
    try:
        assert kept in told()
    finally:
        ledger.resume()
