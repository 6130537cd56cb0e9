"""Table 2-3 from row 5 on, what is tied, and what a person blocks (TP1-4 to TP1-7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from kombu import Connection, Exchange, Queue

from celery_poison import signals
from celery_poison.extensions.outbox.desk import OutboxDesk
from celery_poison.extensions.outbox.lanes import Lane
from celery_poison.extensions.outbox.send_failures import Cause
from celery_poison.rules.blocks import RuleKind
from celery_poison.testing import RedisServer
from tests import sampled
from tests.producer.kit import Shop, declare_otherwise, tied

PACKS = Lane("celery", "shop.pack")
MORE_BROKERS = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


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
    assert [(each.cause, each.queue_blocked) for each in shop.reports] == [(Cause.NOT_REPLICATED, True)]
    broker.config_set("min-replicas-to-write", 0)
    OutboxDesk(shop.plugin).unblock("celery", actor="test")
    broker.config_set("maxmemory", 1)
    shop.relay()
    assert len(shop.reports) == 1, "it is told once, however often it fails"
    assert (shop.lanes()["celery"].cause, shop.lanes()["celery"].blocked) == ("resources", None)
    broker.config_set("maxmemory", 0)
    shop.outbox.resend()
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
    assert [(each.cause, each.queue_blocked) for each in shop.reports] == [(Cause.RESOURCES, False)]
    assert shop.lanes()["celery"].blocked is None
    assert shop.queued("mail") == [5]
    arrived = shop.queued()
    shop.outbox.resend()
    shop.relay()
    arrived += shop.queued()
    assert arrived == [1, 2, 3, 4] and shop.waiting() == [], "what was taken of a batch is not sent again"


# --- row 7 ---------------------------------------------------------------------------------------------


@MORE_BROKERS
@pytest.mark.parametrize("blocks", [False, True])
def test_TP1_6_row_7_messages_of_a_blocked_task_wait_by_themselves_and_the_others_go_on(
    shop: Shop, blocks: bool
) -> None:
    shop.plugin.override({"poison_outbox_auto_block": blocks})
    shop.ledger.rules.block(
        RuleKind.TASK, "shop.pack", task="shop.pack", lasts_ms=0, actor="a", note="", journalled=""
    )
    for order in (1, 2):
        shop.task("pack").delay(order)
        shop.charge(order + 10)
    shop.relay()
    assert shop.queued() == [11, 12]
    assert shop.waiting(PACKS) == [1, 2]
    assert [(each.cause, each.task, each.queue_blocked) for each in shop.reports] == [
        (Cause.TASK_BLOCKED, "shop.pack", blocks)
    ]
    assert bool(shop.lanes()[str(PACKS)].blocked) is blocks
    shop.task("pack").delay(3)
    shop.relay()
    assert shop.queued() == [], "during the wait nothing of it is sent"
    shop.ledger.rules.unblock(RuleKind.TASK, "shop.pack", actor="a", journalled="")
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
    assert [(each.cause, each.queue, each.queue_blocked) for each in shop.reports] == [
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
    assert [(each.cause, each.task, each.queue_blocked) for each in shop.reports] == [
        (Cause.BAD_MESSAGE, "shop.pack", True)
    ]
    assert shop.waiting(PACKS) == [2, 4]
    OutboxDesk(shop.plugin).drop(shop.reports[0].outbox_seq, actor="ann")
    OutboxDesk(shop.plugin).unblock("celery", "shop.pack", actor="ann")
    shop.relay()
    assert shop.queued() == [4]


@MORE_BROKERS
def test_TP1_7_row_10_what_cannot_be_read_blocks_no_other_task(shop: Shop) -> None:
    shop.charge(1)
    shop.outbox.add("celery", [b"shop.pack\tid\tmid\tnot JSON\nbody"])
    shop.charge(3)
    shop.relay()
    assert shop.queued() == [1, 3]
    lane = shop.lanes()[str(PACKS)]
    assert lane.waiting == 1 and lane.blocked and lane.blocked["cause"] == "bad_message"


# --- tied messages: transaction-synchronous -------------------------------------------------------------


@MORE_BROKERS
def test_TP1_5_of_tied_messages_the_others_go_on_and_the_failed_one_is_kept(shop: Shop) -> None:
    shop.ledger.rules.block(
        RuleKind.TASK, "shop.pack", task="shop.pack", lasts_ms=0, actor="a", note="", journalled=""
    )
    with tied(shop):
        shop.charge(1)
        shop.task("pack").delay(2)
        shop.charge(3)
    shop.relay()
    assert shop.queued() == [1, 3]
    assert shop.failed() == [2]
    assert [each.cause for each in shop.reports] == [Cause.TASK_BLOCKED]
    shop.ledger.rules.unblock(RuleKind.TASK, "shop.pack", actor="a", journalled="")
    OutboxDesk(shop.plugin).retry(shop.reports[0].outbox_seq, actor="ann")
    shop.relay()
    assert (shop.queued(), shop.failed()) == ([2], [])
    assert shop.events()[-1] == "send_retried"


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
    declare_otherwise(broker_url, "bad", **{"x-max-length": 7})
    shop = new_shop(broker_url, poison_outbox_retries=100)
    shop.charge(1, queue="bad")
    assert shop.healthy.once() == 0.0
    shop.charge(2)
    assert shop.healthy.once() == 0.0
    assert shop.queued() == [2]
