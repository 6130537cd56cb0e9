"""What release publishes is what was sent: body, properties and every header that is not ours.

But for the time after which the broker may drop it (NEW-26): a released message is to run.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_poison.headers import RELEASE
from celery_poison.keep.stored_message import TTL
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper

FOREIGN = {
    "x-tenant": "Grüße ☃",
    "x-nested": {"list": [1, 2.5, None, True, {"deep": "er"}], "empty": {}, "none": None},
    "x-number": 2**40,
    "x-empty": "",
}
TOMORROW = datetime(2031, 5, 17, 12, 30, tzinfo=UTC)

SENT: dict[str, dict[str, Any]] = {
    "plain": {},
    "arguments": {"args": ["Grüße \u0000 ☃", {"a": [1.5, None]}]},
    "lone surrogate": {"args": ["\ud800"]},
    "priority": {"priority": 9},
    "other queue": {"queue": "slow.lane"},
    "gzip": {"args": ["x" * 2000], "compression": "gzip"},
    "bzip2": {"args": ["x" * 2000], "compression": "bzip2"},
    "lzma": {"args": ["x" * 2000], "compression": "lzma"},
    "pickle": {"args": [b"\x00\xff\xfe"], "serializer": "pickle"},
    "pickle, gzip": {"args": [b"\x00\xff" * 999], "serializer": "pickle", "compression": "gzip"},
    "foreign headers": {"headers": FOREIGN},
    "eta": {"eta": TOMORROW},
    "expires": {"countdown": 60, "expires": TOMORROW + timedelta(days=1)},
    "reply to": {"reply_to": "somebody", "time_limit": 30, "shadow": "a shadow"},
    "canvas": {"link": True, "link_error": True},
}


def send(fleet: Fleet, options: dict[str, Any]) -> str:
    """Send one message and return its queue."""
    options = dict(options)
    for name in ("link", "link_error"):
        if options.pop(name, False):
            options[name] = fleet.app.signature("fleet.healthy", args=(1,))
    args = options.pop("args", [1])
    fleet.app.tasks["fleet.healthy"].apply_async(args, **options)
    return str(options.get("queue", "celery"))


@pytest.mark.parametrize("name", SENT)
def test_SAP_7_release_publishes_what_was_sent_byte_for_byte_on_Redis(
    name: str, fleet: Fleet, keeper: Keeper
) -> None:
    queue = send(fleet, SENT[name])
    (sent,) = keeper.raw_on_redis(queue)

    (outcome,) = fleet.quarantine.release([keeper.keep(keeper.receive(queue))])

    assert outcome.done, outcome
    (released,) = keeper.raw_on_redis(queue)
    assert released["headers"].pop(RELEASE) == 1
    assert released["properties"].pop("delivery_tag") != sent["properties"].pop("delivery_tag")
    sent["properties"].pop(TTL, None)
    assert released == sent


def test_SAP_7_release_keeps_the_priority_on_Redis(fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, priority=9)
    fleet.quarantine.release([mid])
    client = keeper.ledger.client
    assert client.llen("celery") == 0
    assert client.llen("celery\x06\x169") == 1


def test_SAP_7_notes_of_an_earlier_redelivery_do_not_leak_into_the_release(
    fleet: Fleet, keeper: Keeper
) -> None:
    """kombu marks a message that it puts back; the released copy is delivered for the first time."""
    send(fleet, {})
    (sent,) = keeper.raw_on_redis()
    first = keeper.receive()
    first.channel.qos.restore_by_tag(first.delivery_tag)
    (put_back,) = keeper.raw_on_redis()
    assert put_back["properties"]["delivery_info"]["redelivered"]

    fleet.quarantine.release([keeper.keep(keeper.receive())])

    (released,) = keeper.raw_on_redis()
    assert "redelivered" not in released["properties"]["delivery_info"]
    assert {k: v for k, v in released["headers"].items() if k != RELEASE} == sent["headers"]


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("name", [name for name in SENT if name != "lone surrogate"])
def test_SAP_7_release_publishes_what_was_sent_byte_for_byte_on_RabbitMQ(
    name: str, fleet: Fleet, keeper: Keeper
) -> None:
    queue = send(fleet, SENT[name])
    sent = keeper.take_from_rabbit(queue)

    (outcome,) = fleet.quarantine.release([keeper.keep(keeper.receive(queue))])

    assert outcome.done, outcome
    released = keeper.take_from_rabbit(queue)
    assert released.properties["application_headers"].pop(RELEASE) == 1
    assert released.body == sent.body
    sent.properties.pop(TTL, None)
    assert released.properties == sent.properties


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_SAP_7_properties_that_Celery_never_sets_survive_on_RabbitMQ(fleet: Fleet, keeper: Keeper) -> None:
    send(fleet, {})
    first = keeper.receive()
    properties = {
        **{name: value for name, value in first.properties.items() if name != "application_headers"},
        "message_id": "m-1",
        "type": "a type",
        "app_id": "an app",
        "timestamp": 1_767_323_045,
        "expiration": "86400000",
        "application_headers": {**first.headers, "x-when": datetime(2026, 1, 2), "x-bytes": b"\x00\xff"},
    }
    with fleet.app.connection_for_write() as connection:
        channel = connection.default_channel
        message = channel.prepare_message(first.body, properties=properties, **_named(properties))
        channel.basic_publish(message, exchange="", routing_key="celery")
    first.ack()
    sent = keeper.take_from_rabbit()

    fleet.quarantine.release([keeper.keep(keeper.receive())])

    released = keeper.take_from_rabbit()
    released.properties["application_headers"].pop(RELEASE)
    assert sent.properties.pop(TTL)
    assert released.properties == sent.properties


def _named(properties: dict[str, Any]) -> dict[str, Any]:
    names = ("content_type", "content_encoding", "priority")
    named = {name: properties.pop(name, None) for name in names}
    return {**named, "headers": properties.pop("application_headers")}
