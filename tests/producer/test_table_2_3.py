"""Table 2-3, row by row: what is done about each way in which a sending can fail (TP1-1 to TP1-7)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import amqp.exceptions
import pytest
import redis
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError

from celery_poison import signals
from celery_poison.blocks import Kind
from celery_poison.chaos.surroundings import TcpProxy
from celery_poison.ledger.outbox import Lane
from celery_poison.producer import handover
from celery_poison.producer.causes import Blocks, Cause, cause_of
from celery_poison.producer.desk import OutboxDesk
from celery_poison.testing import RedisServer
from celery_poison.testing.basics import wait_until
from tests.producer.kit import Shop

#: Nobody listens there.
NOWHERE = "redis://127.0.0.1:1/0"
PACKS = Lane("celery", "shop.pack")


def _declare(url: str, name: str, **arguments: Any) -> None:
    """Declare a queue on RabbitMQ, as somebody else would have it."""
    with Connection(url) as connection:
        Queue(name, Exchange(name), name, queue_arguments=arguments)(connection.default_channel).declare()


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
    _declare(broker_url, "celery", **{"x-max-length": 7})
    shop.charge(1, 2)
    shop.charge(3, queue="mail")
    shop.relay()
    assert shop.queued("mail") == [3], "no other queue waits"
    assert shop.waiting() == [1, 2]
    blocked = shop.lanes()["celery"].blocked
    assert blocked and blocked["cause"] == "definition" and blocked["seq"] == shop.reports[0].seq
    assert [(each.cause, each.blocked, each.uncertain) for each in shop.reports] == [
        (Cause.DEFINITION, True, False)
    ]


# --- row 3 ---------------------------------------------------------------------------------------------


def test_TP1_1_row_3_a_broker_that_is_away_is_tried_again_then_told_once_and_waited_for(
    new_shop: Callable[..., Shop],
) -> None:
    shop = new_shop(NOWHERE, poison_outbox_retries=2)
    shop.charge(1, 2, 3)
    shop.relay()
    lane = shop.lanes()["celery"]
    assert (lane.cause, lane.blocked, lane.tries) == ("transport", None, 0)
    assert lane.due_in is not None and lane.due_in > 500, "the resend interval"
    assert [(each.seq, each.blocked) for each in shop.reports] == [(1, False)]
    assert shop.reports[0].outgoing.queue == "celery"
    assert shop.waiting() == [1, 2, 3]
    assert shop.events() == ["send_failed"]
    shop.ledger.outbox_resend("celery")
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


def test_TP1_4_row_3_the_queue_is_blocked_only_where_that_is_defined(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop(NOWHERE, poison_outbox_retries=0, poison_outbox_auto_block=["mail"])
    shop.charge(1, queue="mail")
    shop.charge(2)
    shop.relay()
    lanes = shop.lanes()
    assert lanes["mail"].blocked and lanes["celery"].blocked is None
    assert {each.queue: each.blocked for each in shop.reports} == {"mail": True, "celery": False}


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
    shop.ledger.outbox_resend("celery")
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
        shop.ledger.outbox_resend("celery")
        shop.relay()
        assert [*arrived, *shop.queued()] == [0, 1, 1], "the receiver tells the second copy by its note"
    remembered: Any = shop.ledger.client.hvals(shop.ledger.keys.parked)
    assert [row.startswith(b'["published"') for row in remembered] == [True]


def test_TP1_3_row_3_a_broker_that_was_never_reached_has_nothing(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop(NOWHERE, poison_outbox_retries=0)
    shop.charge(1)
    shop.relay()
    assert [(each.cause, each.uncertain) for each in shop.reports] == [(Cause.TRANSPORT, False)]


# --- rows 5 and 6 --------------------------------------------------------------------------------------


def test_TP1_4_rows_5_and_6_too_few_replicas_or_no_memory_are_tried_again_and_only_row_5_may_block(
    new_shop: Callable[..., Shop], new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    broker = redis.Redis.from_url(server.url())
    shop = new_shop(server.url(), poison_outbox_retries=1, poison_outbox_auto_block=True)
    broker.config_set("min-replicas-to-write", 1)
    shop.charge(1)
    shop.relay()
    assert [(each.cause, each.blocked) for each in shop.reports] == [(Cause.NOT_REPLICATED, True)]
    broker.config_set("min-replicas-to-write", 0)
    OutboxDesk(shop.plugin).unblock("celery", actor="test")
    broker.config_set("maxmemory", 1)
    shop.relay()
    assert len(shop.reports) == 1, "it is told once, however often it fails"
    assert (shop.lanes()["celery"].cause, shop.lanes()["celery"].blocked) == ("resources", None)
    broker.config_set("maxmemory", 0)
    shop.ledger.outbox_resend()
    shop.relay()
    assert shop.queued() == [1]
    broker.close()


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_4_row_6_a_full_queue_is_tried_again_and_never_blocked_and_holds_up_no_other(
    new_shop: Callable[..., Shop], broker_url: str
) -> None:
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    shop = new_shop(
        broker_url,
        poison_outbox_retries=1,
        poison_outbox_auto_block=True,
        task_queues=[Queue("celery", Exchange("celery"), "celery", queue_arguments=limits), Queue("mail")],
    )
    shop.charge(1, 2, 3, 4)
    shop.charge(5, queue="mail")
    shop.relay()
    assert [(each.cause, each.blocked) for each in shop.reports] == [(Cause.RESOURCES, False)]
    assert shop.lanes()["celery"].blocked is None
    assert shop.queued("mail") == [5]
    arrived = shop.queued()
    shop.ledger.outbox_resend()
    shop.relay()
    arrived += shop.queued()
    assert arrived == [1, 2, 3, 4] and shop.waiting() == [], "what was taken of a batch is not sent again"


# --- row 7 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [False, True])
def test_TP1_6_row_7_messages_of_a_blocked_task_wait_by_themselves_and_the_others_go_on(
    new_shop: Callable[..., Shop], blocks: bool
) -> None:
    shop = new_shop(poison_outbox_auto_block=blocks)
    shop.ledger.block(Kind.TASK, "shop.pack", task="shop.pack", lasts_ms=0, actor="a", note="", said="")
    for order in (1, 2):
        shop.task("pack").delay(order)
        shop.charge(order + 10)
    shop.relay()
    assert shop.queued() == [11, 12]
    assert shop.waiting(PACKS) == [1, 2]
    assert [(each.cause, each.task, each.blocked) for each in shop.reports] == [
        (Cause.TASK_BLOCKED, "shop.pack", blocks)
    ]
    assert bool(shop.lanes()[str(PACKS)].blocked) is blocks
    shop.task("pack").delay(3)
    shop.relay()
    assert shop.queued() == [], "during the wait nothing of it is sent"
    shop.ledger.unblock(Kind.TASK, "shop.pack", actor="a", said="")
    if blocks:
        OutboxDesk(shop.plugin).unblock("celery", "shop.pack", actor="a")
    shop.relay()
    assert shop.queued() == [1, 2, 3], "in their order"


# --- row 8 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_TP1_4_row_8_an_exchange_of_no_queue_is_blocked_at_once(shop: Shop) -> None:
    shop.charge(1, exchange="nothing", routing_key="at.all", declare=[Exchange("nothing", "direct")])
    shop.charge(2)
    shop.relay()
    assert shop.queued() == [2]
    assert [(each.cause, each.queue, each.blocked) for each in shop.reports] == [
        (Cause.UNROUTABLE, "nothing/at.all", True)
    ]
    assert shop.lanes()["nothing/at.all"].blocked


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_4_row_8_a_queue_that_was_deleted_is_blocked_and_unblocking_sends_at_once(
    shop: Shop, broker_url: str
) -> None:
    shop.charge(1)
    shop.relay()
    with Connection(broker_url) as connection:
        connection.default_channel.queue_delete("celery")
    shop.charge(2, 3)
    shop.relay()
    assert [each.cause for each in shop.reports] == [Cause.UNROUTABLE]
    OutboxDesk(shop.plugin).unblock("celery", actor="ann")
    shop.relay()  # declares it anew
    assert shop.queued() == [2, 3]


# --- row 10 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_7_row_10_one_bad_message_of_a_batch_blocks_its_task_only(shop: Shop) -> None:
    shop.charge(1)
    shop.task("pack").apply_async([2], priority=999)
    shop.charge(3)
    shop.task("pack").apply_async([4])
    shop.charge(5)
    shop.relay()
    assert sorted({*shop.queued()}) == [1, 3, 5]
    assert [(each.cause, each.task, each.blocked) for each in shop.reports] == [
        (Cause.BAD_MESSAGE, "shop.pack", True)
    ]
    assert shop.waiting(PACKS) == [2, 4]
    OutboxDesk(shop.plugin).drop(shop.reports[0].seq, actor="ann")
    OutboxDesk(shop.plugin).unblock("celery", "shop.pack", actor="ann")
    shop.relay()
    assert shop.queued() == [4]


# --- tied messages: transaction-synchronous -------------------------------------------------------------


def test_TP1_5_of_tied_messages_the_others_go_on_and_the_failed_one_is_kept(
    new_shop: Callable[..., Shop],
) -> None:
    shop = new_shop()
    shop.ledger.block(Kind.TASK, "shop.pack", task="shop.pack", lasts_ms=0, actor="a", note="", said="")
    with tied(shop):
        shop.charge(1)
        shop.task("pack").delay(2)
        shop.charge(3)
    shop.relay()
    assert shop.queued() == [1, 3]
    assert shop.failed() == [2]
    assert [(each.tied, each.cause) for each in shop.reports] == [(True, Cause.TASK_BLOCKED)]
    shop.ledger.unblock(Kind.TASK, "shop.pack", actor="a", said="")
    OutboxDesk(shop.plugin).retry(shop.reports[0].seq, actor="ann")
    shop.relay()
    assert (shop.queued(), shop.failed()) == ([2], [])
    assert shop.events()[-1] == "send_retried"


class tied:
    """What is published in here is stored as tied to the success of a task."""

    def __init__(self, shop: Shop) -> None:
        from celery_poison.producer.capture import captured_by

        self._captured_by = captured_by
        self._store = lambda outgoing: shop.plugin.outbox.store(outgoing.as_tied())

    def __enter__(self) -> None:
        self._token = self._captured_by.set(self._store)

    def __exit__(self, *_: object) -> None:
        self._captured_by.reset(self._token)


# --- blocked by a person --------------------------------------------------------------------------------


def test_TP1_4_a_person_blocks_a_queue_and_unblocking_sends_what_waits_at_once(shop: Shop) -> None:
    heard: list[Any] = []

    def hear(signal: Any, sender: Any, **facts: Any) -> None:
        heard.append((signal.name, facts))

    for name in ("queue_blocked", "queue_unblocked"):
        getattr(signals, name).connect(hear)
    desk = OutboxDesk(shop.plugin)
    assert desk.block("celery", actor="ann", note="their disk is full")
    assert not desk.block("celery", actor="ann")
    shop.charge(1, 2)
    shop.charge(3, queue="mail")
    shop.relay()
    assert (shop.queued(), shop.queued("mail")) == ([], [3])
    assert shop.reports == [], "nothing failed"
    assert desk.unblock("celery", actor="ann") == 1
    shop.relay()
    assert shop.queued() == [1, 2]
    assert heard == [
        ("queue_blocked", {"queue": "celery", "cause": ""}),
        ("queue_unblocked", {"queue": "celery"}),
    ]
    assert shop.events() == ["queue_blocked", "queue_unblocked"]


def test_TP1_4_a_person_blocks_one_task_of_a_queue(shop: Shop) -> None:
    desk = OutboxDesk(shop.plugin)
    desk.block("celery", "shop.pack", actor="ann")
    shop.task("pack").delay(1)
    shop.charge(2)
    shop.task("pack").delay(3)
    shop.relay()
    assert (shop.queued(), shop.waiting(PACKS)) == ([2], [1, 3])
    desk.unblock("celery", "shop.pack", actor="ann")
    shop.relay()
    assert shop.queued() == [1, 3]


# --- one destination and another ------------------------------------------------------------------------


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_TP1_5_a_queue_in_trouble_is_served_by_a_thread_of_its_own(
    new_shop: Callable[..., Shop], broker_url: str
) -> None:
    _declare(broker_url, "bad", **{"x-max-length": 7})
    shop = new_shop(broker_url, poison_outbox_retries=100)
    shop.charge(1, queue="bad")
    assert shop.healthy.once() == 0.0
    shop.charge(2)
    assert shop.healthy.once() == 0.0
    assert shop.queued() == [2]
