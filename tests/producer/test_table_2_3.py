"""Table 2-3, row by row: the table itself, and rows 2 to 4 (TP1-1 to TP1-7)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import amqp.exceptions
import pytest
import redis
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_poison.extensions.outbox import handover
from celery_poison.extensions.outbox.desk import OutboxDesk
from celery_poison.extensions.outbox.send_failures import Blocks, Cause, cause_of
from celery_poison.testing import RedisServer
from celery_poison.testing.servers import wait_until
from tests.harness.proxy import TcpProxy
from tests.producer.kit import NOWHERE, Shop, declare_otherwise

NOWHERES = pytest.mark.parametrize("nowhere", [NOWHERE, "amqp://127.0.0.1:1//"])


# --- the table itself ----------------------------------------------------------------------------------

#: Row -> (retried, waits by task, blocks, may have arrived), read off the source.
ROWS = {
    2: (False, False, Blocks.ALWAYS, False),
    3: (True, False, Blocks.WHERE_DEFINED, True),
    4: (True, False, Blocks.WHERE_DEFINED, True),
    5: (True, False, Blocks.WHERE_DEFINED, False),
    6: (True, False, Blocks.NEVER, False),
    7: (False, True, Blocks.WHERE_DEFINED, False),
    8: (False, False, Blocks.ALWAYS, False),
    9: (False, True, Blocks.ALWAYS, False),
    10: (False, True, Blocks.ALWAYS, False),
}


@pytest.mark.parametrize("cause", Cause)
def test_TP1_2_each_cause_is_treated_as_its_row_says(cause: Cause) -> None:
    row = cause.row
    assert (row.retried, row.by_task, row.blocks, row.uncertain) == ROWS[row.number]
    for auto_block, listed in ((False, False), (True, True), (["celery"], True), (["other"], False)):
        expected = {Blocks.ALWAYS: True, Blocks.NEVER: False, Blocks.WHERE_DEFINED: listed}[row.blocks]
        assert cause.blocks("celery", auto_block) is expected


def test_every_row_but_the_first_has_one_cause() -> None:
    assert sorted(cause.row.number for cause in Cause) == [*range(2, 11)]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionRefusedError(), Cause.TRANSPORT),
        (OperationalError("x"), Cause.TRANSPORT),
        (redis.ConnectionError(), Cause.TRANSPORT),
        (redis.TimeoutError(), Cause.TRANSPORT),
        (redis.ResponseError("READONLY You can't write against a read only replica."), Cause.TRANSPORT),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), Cause.NOT_REPLICATED),
        (redis.exceptions.OutOfMemoryError("command not allowed"), Cause.RESOURCES),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), Cause.RESOURCES),
        (redis.AuthenticationError("invalid username-password pair"), Cause.DEFINITION),
        (redis.ResponseError("WRONGTYPE Operation against a key"), Cause.DEFINITION),
        (amqp.exceptions.MessageNacked(), Cause.RESOURCES),
        (amqp.exceptions.AccessRefused("x", (10, 40)), Cause.DEFINITION),
        (amqp.exceptions.PreconditionFailed("x"), Cause.DEFINITION),
        (amqp.exceptions.NotFound("no exchange"), Cause.UNROUTABLE),
        (amqp.exceptions.ConnectionForced("bye"), Cause.TRANSPORT),
        (struct.error("ubyte format requires 0 <= number <= 255"), Cause.BAD_MESSAGE),
        (amqp.exceptions.FrameSyntaxError("Table type"), Cause.BAD_MESSAGE),
    ],
)
def test_TP1_2_what_a_broker_says_tells_the_cause(error: Exception, cause: Cause) -> None:
    assert cause_of(error) is cause


# --- row 2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_4_row_2_a_queue_configured_otherwise_is_blocked_at_once_and_told(
    shop: Shop, broker_url: str
) -> None:
    declare_otherwise(broker_url, "celery", **{"x-max-length": 7})
    shop.charge(1, 2)
    shop.charge(3, queue="mail")
    shop.relay()
    assert shop.queued("mail") == [3], "no other queue waits"
    assert shop.waiting() == [1, 2]
    blocked = shop.lanes()["celery"].blocked
    assert blocked and blocked["cause"] == "definition" and blocked["seq"] == shop.reports[0].outbox_seq
    assert [(each.cause, each.queue_blocked, each.uncertain) for each in shop.reports] == [
        (Cause.DEFINITION, True, False)
    ]


@pytest.mark.parametrize("broker", ["the ledger's Redis", "another Redis"])
def test_TP1_4_row_2_a_queue_whose_name_is_taken_by_something_else_is_blocked_at_once_and_told(
    broker: str, new_shop: Callable[..., Shop], new_redis_url: Callable[[], str]
) -> None:
    shop = new_shop(new_redis_url() if broker == "another Redis" else "")
    taken = redis.Redis.from_url(shop.app.conf.broker_url)
    taken.set("celery", "somebody's")
    shop.charge(1, 2)
    shop.charge(3, queue="mail")
    shop.relay()
    assert shop.queued("mail") == [3] and shop.waiting() == [1, 2]
    assert [(each.cause, each.queue_blocked, each.outbox_seq) for each in shop.reports] == [
        (Cause.DEFINITION, True, 1)
    ]
    taken.delete("celery")
    OutboxDesk(shop.plugin).unblock("celery", actor="ann")
    shop.relay()
    assert shop.queued() == [1, 2]
    taken.close()


# --- row 3 ---------------------------------------------------------------------------------------------


@NOWHERES
def test_TP1_1_row_3_a_broker_that_is_away_is_tried_again_then_told_once_and_waited_for(
    nowhere: str, new_shop: Callable[..., Shop]
) -> None:
    shop = new_shop(nowhere, poison_outbox_retries=2)
    shop.charge(1, 2, 3)
    shop.relay()
    lane = shop.lanes()["celery"]
    assert (lane.cause, lane.blocked, lane.tries) == ("transport", None, 0)
    assert lane.due_in is not None and lane.due_in > 500, "the resend interval"
    assert [(each.outbox_seq, each.queue_blocked) for each in shop.reports] == [(1, False)]
    assert shop.reports[0].unsent[0].queue == "celery"
    assert shop.waiting() == [1, 2, 3]
    assert shop.events() == ["send_failed"]
    shop.outbox.resend("celery")
    shop.relay()
    assert len(shop.reports) == 1, "it is told once, however often it fails"


def test_TP1_1_row_3_it_is_tried_as_often_as_the_settings_say(
    new_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    opened = handover.Handover.send
    monkeypatch.setattr(
        handover.Handover, "send", lambda self, batch: (tries.append(len(batch)), opened(self, batch))[1]
    )
    shop = new_shop(NOWHERE, poison_outbox_retries=4)
    shop.charge(1, 2)
    shop.relay()
    assert tries == [2, 1, 1, 1, 1], "together once; then one by one, four times again"


@NOWHERES
def test_TP1_4_row_3_the_queue_is_blocked_only_where_that_is_defined(
    nowhere: str, new_shop: Callable[..., Shop]
) -> None:
    shop = new_shop(nowhere, poison_outbox_retries=0, poison_outbox_auto_block=["mail"])
    shop.charge(1, queue="mail")
    shop.charge(2)
    shop.relay()
    lanes = shop.lanes()
    assert lanes["mail"].blocked and lanes["celery"].blocked is None
    assert {each.queue: each.queue_blocked for each in shop.reports} == {"mail": True, "celery": False}


def test_TP1_6_row_3_during_the_wait_nothing_is_sent_and_new_messages_queue_behind(
    new_shop: Callable[..., Shop], new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    shop = new_shop(server.url(), poison_outbox_retries=0)
    server.kill()
    shop.charge(1)
    shop.relay()
    server.start()
    shop.charge(2, 3)
    shop.relay()
    assert shop.queued() == [], "the broker is back, and the interval is not over"
    assert shop.waiting() == [1, 2, 3]
    shop.outbox.resend("celery")
    shop.relay()
    assert shop.queued() == [1, 2, 3]


# --- row 4 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_3_row_4_a_message_that_is_not_confirmed_may_have_arrived_and_says_so(
    new_shop: Callable[..., Shop], broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpProxy("127.0.0.1", Connection(broker_url).port) as proxy:
        shop = new_shop(proxy.url(broker_url), poison_outbox_retries=0)
        shop.charge(0)
        shop.relay()
        monkeypatch.setattr(handover, "ANSWER_TIMEOUT", 0.3)
        proxy.freeze()
        shop.charge(1)
        shop.relay()
        assert [(each.cause, each.uncertain) for each in shop.reports] == [(Cause.NO_CONFIRMATION, True)]
        assert shop.waiting() == [1]
        monkeypatch.undo()
        proxy.heal()
        arrived = shop.queued()
        wait_until(lambda: arrived.extend(shop.queued()) or 1 in arrived, what="the first copy is there")
        shop.outbox.resend("celery")
        shop.relay()
        assert [*arrived, *shop.queued()] == [0, 1, 1], "the receiver tells the second copy by its note"
    remembered: Any = shop.ledger.client.hvals(shop.ledger.keys.parked)
    assert [row.startswith(b'["published"') for row in remembered] == [True]


def test_TP1_3_row_4_a_redis_that_does_not_answer_may_have_the_message_and_says_so(
    new_shop: Callable[..., Shop],
    redis_server: RedisServer,
    new_redis_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = new_redis_url()
    with TcpProxy("127.0.0.1", redis_server.port) as proxy:
        monkeypatch.setitem(handover._BOUNDS, "socket_timeout", 0.3)
        shop = new_shop(proxy.url(broker), poison_outbox_retries=0)
        shop.charge(0)
        shop.relay()
        proxy.freeze()
        shop.charge(1)
        shop.relay()
        assert [(each.cause, each.uncertain) for each in shop.reports] == [(Cause.TRANSPORT, True)]
        proxy.heal()
        shop.outbox.resend("celery")
        shop.relay()
        assert {*shop.queued()} == {0, 1} and shop.waiting() == []


@NOWHERES
def test_TP1_3_row_3_a_broker_that_was_never_reached_has_nothing(
    nowhere: str, new_shop: Callable[..., Shop]
) -> None:
    shop = new_shop(nowhere, poison_outbox_retries=0)
    shop.charge(1)
    shop.relay()
    assert [(each.cause, each.uncertain) for each in shop.reports] == [(Cause.TRANSPORT, False)]
