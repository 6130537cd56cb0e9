"""ERRTRNS: what is started when a message in the outbox could not be sent, by table 2-4 (TP1-3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from celery_poison.broker.capture import Outgoing, captured
from celery_poison.extensions.error_transactions.transactions import for_failed_send
from celery_poison.extensions.outbox.packing import lane_of, pack
from celery_poison.rules.blocks import RuleKind
from tests import sampled
from tests.producer.kit import Shop

BROKERS = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """Its task `shop.pack` is blocked, and whoever hears of that has a queue of its own."""
    shop.plugin.override({"poison_on_send_failed": "shop.alarm", "poison_outbox_auto_block": True})
    shop.app.conf.task_routes = {"shop.alarm": "alarms"}
    shop.hear(partial(for_failed_send, shop.app))
    shop.ledger.rules.block(
        RuleKind.TASK, "shop.pack", task="shop.pack", lasts_ms=0, actor="a", note="", journalled=""
    )
    return shop


@BROKERS
def test_TP1_3_row_3_of_an_asynchronous_send_its_number_and_first_message_are_told(shop: Shop) -> None:
    for order in (7, 8):
        shop.task("pack").delay(order)
    shop.relay()
    (report,) = shop.queued("alarms")
    assert (report["kind"], report["queue"], report["task"]) == ("on_send_failed", "celery", "shop.pack")
    assert (report["cause"], report["queue_blocked"], report["uncertain"]) == ("task_blocked", True, False)
    assert (report["outbox_seq"], report["input"]) == (1, None)
    assert [message["args"] for message in report["unsent"]] == [[7]]


@BROKERS
def test_TP1_3_row_1_of_a_synchronous_send_its_destination_cause_and_message_are_told(shop: Shop) -> None:
    taken: list[Outgoing] = []

    def take(outgoing: Outgoing) -> bool:
        taken.append(outgoing.as_tied())
        return True

    with captured(take):
        shop.task("pack").delay(7)
    shop.outbox.add(str(lane_of(taken[0])), [pack(taken[0])])
    shop.relay()
    (report,) = shop.queued("alarms")
    assert (report["queue"], report["task"], report["cause"]) == ("celery", "shop.pack", "task_blocked")
    assert [message["args"] for message in report["unsent"]] == [[7]] and shop.failed() == [7]


def test_TP1_3_a_send_whose_fate_is_uncertain_says_so(shop: Shop) -> None:
    told: list[Any] = []
    shop.hear(lambda failed: told.append(replace(failed, uncertain=True)) or ())
    shop.task("pack").delay(7)
    shop.relay()
    (message,) = for_failed_send(shop.app, told[0])
    assert b'"uncertain": true' in message.body


def test_TP1_3_an_error_transaction_that_cannot_be_sent_starts_none(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop(poison_on_send_failed="shop.pack")
    shop.hear(partial(for_failed_send, shop.app))
    shop.ledger.rules.block(
        RuleKind.TASK, "shop.pack", task="shop.pack", lasts_ms=0, actor="a", note="", journalled=""
    )
    shop.task("pack").delay(7)
    shop.relay()
    shop.outbox.resend()
    shop.relay()
    assert sum(each.waiting for each in shop.lanes().values()) == 2, "the message, and one report of it"


def test_TP1_3_without_on_send_failed_nothing_is_started(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop()
    shop.hear(partial(for_failed_send, shop.app))
    shop.ledger.rules.block(
        RuleKind.TASK, "shop.pack", task="shop.pack", lasts_ms=0, actor="a", note="", journalled=""
    )
    shop.task("pack").delay(7)
    shop.relay()
    assert sum(each.waiting for each in shop.lanes().values()) == 1
