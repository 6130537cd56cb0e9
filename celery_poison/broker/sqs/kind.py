"""How SQS answers the port."""

from __future__ import annotations

from typing import Any

from kombu.transport import virtual

from celery_poison.broker.other import VirtualBroker
from celery_poison.broker.port import ReceivingProcess


class SqsMessage(virtual.Message):
    """A message from SQS, which counts how often it has handed it out, and flags nothing."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(payload, channel=channel, **kwargs)
        received = (self.delivery_info.get("sqs_message") or {}).get("Attributes") or {}
        count = str(received.get("ApproximateReceiveCount", "1"))
        if count.isdigit() and int(count) > 1:
            self.delivery_info["redelivered"] = True


class SqsBroker(VirtualBroker):
    """SQS. Its count is approximate: even what it hands out for the first time is looked up."""

    title = "sqs"
    lacks = (
        "bodies are kept after unpacking, and a dead worker's messages come back when their visibility"
        " timeout ends: each delivery is looked up for that"
    )

    def guard(self, transport: Any, process: ReceivingProcess) -> Any:
        channel = type("Channel", (transport.Channel,), {"Message": SqsMessage})
        return type("Transport", (transport,), {"Channel": channel})
