"""A copy in the trial queue: whose it is stays known, and no header of ours leaves with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_poison.headers import PARK, TRIAL
from celery_poison.keep.stored_message import publish_release
from celery_poison.model import StoredMessage
from celery_poison.policy import Policy
from celery_poison.settings import Settings
from celery_poison.worker.delivery import Delivery, note_delivery, settle_identity

HOME, COURT = "orders", "celery.trial"


def _delivery(came_from: str | None, home: object, **info: Any) -> Delivery:
    headers = {"id": "i", "task": "t", PARK: 7} | ({TRIAL: home} if home is not None else {})
    message = SimpleNamespace(
        headers=headers, delivery_info=info, queue_name=came_from, body="[]", content_type="application/json"
    )
    policy = Policy.of(object(), Settings())
    return note_delivery(message, policy, diverts=True, token="x", worker="w", pid=1, epoch=0)


@pytest.mark.parametrize(
    ("home", "queue"),
    [(HOME, HOME), (None, COURT), ("", COURT), (7, COURT)],
    ids=["ours", "no", "empty", "odd"],
)
def test_NEW_1_its_own_queue_goes_on_record(home: object, queue: str) -> None:
    delivery = _delivery(COURT, home)
    assert (delivery.start.queue, delivery.came_from) == (queue, COURT)


@pytest.mark.parametrize(
    ("told", "shown"),
    [(COURT, HOME), (HOME, HOME), ("eu.orders", "eu.orders")],
    ids=["RabbitMQ", "Redis", "Redis, by an exchange"],
)
def test_NEW_1_its_task_and_its_retries_see_no_trial_queue(told: str, shown: str) -> None:
    delivery = _delivery(COURT, HOME, exchange="", routing_key=told)
    delivery.forget_trial_queue()
    assert delivery.message.delivery_info == {"exchange": "", "routing_key": shown}


@pytest.mark.parametrize(
    ("consumed", "key", "there"),
    [(COURT, HOME, True), (HOME, HOME, False), (None, COURT, True), (None, HOME, False)],
    ids=["there", "strayed", "untold, published to it", "untold"],
)
def test_NEW_1_where_it_was_consumed_decides_who_tries_it(consumed: Any, key: str, there: bool) -> None:
    delivery = _delivery(consumed, HOME, routing_key=key)
    assert delivery.is_from(COURT) is there
    settle_identity(delivery.message, COURT)
    assert (TRIAL in delivery.message.headers) is there, "else anybody may have written it"


def test_NEW_1_what_never_was_in_the_trial_queue_is_left_alone() -> None:
    delivery = _delivery(HOME, None, exchange="", routing_key=HOME)
    delivery.forget_trial_queue()
    assert delivery.message.delivery_info == {"exchange": "", "routing_key": HOME}
    assert delivery.start.queue == HOME


def test_NEW_6_a_released_copy_does_not_say_where_it_was_tried() -> None:
    published: list[Any] = []
    publisher: Any = SimpleNamespace(publish=lambda *args: published.append(args))
    stored = StoredMessage(
        body=b"", content_type="", content_encoding="", headers={"own": 1, TRIAL: HOME, PARK: 7}
    )
    publish_release(publisher, stored, HOME, 1)
    ((_, queue, headers),) = published
    assert (queue, headers) == (HOME, {"own": 1, "poison_release": 1})
