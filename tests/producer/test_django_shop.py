"""The example of a Django shop, with a real worker: its broker is away for a moment."""

from __future__ import annotations

import pytest

from tests import sampled
from tests.harness.servers import RabbitServer
from tests.producer.shop_run import run
from tests.services import need


@pytest.mark.parametrize("broker", sampled(["redis"], ["rabbitmq"]))
def test_TP1_1_no_order_of_a_django_shop_without_its_message_and_no_message_without_its_order(
    broker: str, redis_server: object
) -> None:
    pytest.importorskip("django")
    need(broker == "redis" or RabbitServer.available(), "RabbitMQ")
    told = run(broker, "sqlite", "kill", away=3.0)
    assert told["good"] and told["orders_meanwhile"], told
