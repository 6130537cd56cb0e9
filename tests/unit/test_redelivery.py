"""What brokers say of a message that came before."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection

from celery_poison.broker.kinds import broker_of
from celery_poison.broker.other import OtherBroker
from celery_poison.broker.sqs.kind import SqsMessage


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
    payload = {"body": "[]", "properties": {"delivery_tag": "1", "delivery_info": info}}
    with Connection("memory://") as connection:
        message = SqsMessage(payload, channel=connection.default_channel)
    assert bool(message.delivery_info.get("redelivered")) is before


def test_NEW_30_a_transport_of_somebody_elses_is_of_no_kind_and_flags_nothing() -> None:
    with Connection("memory://") as connection:
        assert broker_of(connection) is broker_of(connection.default_channel)
        assert type(broker_of(object())) is OtherBroker and not broker_of(connection).flags_redelivery
