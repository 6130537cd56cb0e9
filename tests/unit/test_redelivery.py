"""What brokers say of a message that came before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection

from celery_poison.broker.redelivery import came_before, flags_redelivery


@pytest.mark.parametrize(
    ("info", "before"),
    [
        ({}, False),
        ({"redelivered": True}, True),
        ({"sqs_message": {"Attributes": {"ApproximateReceiveCount": "1"}}}, False),
        ({"sqs_message": {"Attributes": {"ApproximateReceiveCount": "2"}}}, True),
        ({"sqs_message": {"Attributes": {"ApproximateReceiveCount": "many"}}}, False),
        ({"sqs_message": {}}, False),
    ],
)
def test_NEW_30_the_count_of_SQS_tells_that_a_message_came_before(info: dict[str, Any], before: bool) -> None:
    assert came_before(SimpleNamespace(delivery_info=info)) is before


def test_NEW_30_of_another_transport_even_a_first_delivery_may_have_come_before() -> None:
    with Connection("memory://") as connection:
        assert not flags_redelivery(SimpleNamespace(channel=connection.default_channel))
