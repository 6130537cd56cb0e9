"""Limits on how much may wait: what a caller is told, and what a limit never stops."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from celery import Task, chain, chord, group
from kombu import Exchange, Queue

from celery_poison import Quarantine, signals
from celery_poison.broker.capture import Outgoing, captured, exempt
from celery_poison.desk.survey import overview
from celery_poison.errors import QueueFull
from celery_poison.extensions.limits import limiting
from celery_poison.extensions.limits.limiting import LimitsExtension, limits_of
from celery_poison.extensions.outbox.packing import lane_of, pack
from celery_poison.testing import wait_until
from tests import sampled
from tests.producer.kit import Shop

BROKERS = pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)


@pytest.fixture
def limited(new_shop: Callable[..., Shop], broker_url: str) -> Callable[..., Shop]:
    """A function that makes a shop without an outbox, with limits."""
    broker = "" if broker_url.startswith("redis://") else broker_url
    return lambda **settings: new_shop(broker, poison_outbox=False, **settings)


@BROKERS
def test_MSG_2_a_publish_to_a_full_queue_raises_and_nothing_is_sent(limited: Callable[..., Shop]) -> None:
    shop = limited(poison_max_messages=3)
    shop.charge(1, 2, 3)
    with pytest.raises(QueueFull) as caught:
        shop.task("charge").delay(4)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.queue, error.depth, error.limit) == ("celery", 3, 3)
    shop.charge(5, queue="other")
    assert shop.queued() == [1, 2, 3] and shop.queued("other") == [5]
    shop.charge(6)
    assert shop.queued() == [6], "there is room again"


def test_MSG_2_messages_of_every_priority_count(limited: Callable[..., Shop]) -> None:
    shop = limited(poison_max_messages=2)
    shop.charge(1, priority=0)
    shop.charge(2, priority=9)
    with pytest.raises(QueueFull):
        shop.charge(3, priority=5)


@BROKERS
def test_MSG_1_a_queue_has_a_limit_of_its_own(limited: Callable[..., Shop]) -> None:
    shop = limited(
        poison_max_messages=1, poison_queues={"mail": {"max_messages": 2}, "logs": {"max_messages": None}}
    )
    shop.charge(1, 2, queue="mail")
    shop.charge(*range(5), queue="logs")
    shop.charge(1)
    for queue in ("mail", "celery"):
        with pytest.raises(QueueFull, match=repr(queue)):
            shop.charge(3, queue=queue)


@BROKERS
@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_MSG_2_one_full_queue_of_an_exchange_refuses_the_whole_publish(
    limited: Callable[..., Shop], kind: str
) -> None:
    exchange = Exchange(f"orders.{kind}", kind)
    key = "order.#" if kind == "topic" else "order.new"
    # Names of their own: kombu's Redis transport takes a fanout queue for one in all of the process.
    first, second = f"first.{kind}", f"second.{kind}"
    queues = [Queue(name, exchange, routing_key=key) for name in (first, second)] + [Queue("celery")]
    shop = limited(poison_queues={second: {"max_messages": 1}}, task_queues=queues)
    with shop.app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
    where = {
        "exchange": exchange.name,
        "exchange_type": kind,
        "routing_key": "order.new",
        "declare": queues[:2],
    }
    assert limits_of(shop.app).queues_of(where) == [first, second]
    if kind == "fanout" and shop.app.conf.broker_url.startswith("redis"):
        return  # kombu sends these to whoever listens, and keeps none
    shop.charge(1, **where)
    with pytest.raises(QueueFull, match=second):
        shop.charge(2, **where)
    assert (shop.queued(first), shop.queued(second)) == ([1], [1])


def test_MSG_2_far_from_the_limit_a_publish_does_not_ask_the_broker(
    limited: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    count = limiting.depth

    def depth(connection: Any, queue: str) -> int:
        counts.append(count(connection, queue))
        return counts[-1]

    monkeypatch.setattr(limiting, "depth", depth)
    monkeypatch.setattr(limiting, "FRESH", 3600.0)
    shop = limited(poison_max_messages=1000)
    shop.charge(*range(100))
    assert counts == [0]
    shop.charge(*range(899))
    assert len(counts) < 70 and counts == sorted(counts)
    shop.charge(999)
    with pytest.raises(QueueFull):
        shop.charge(1000)
    assert counts[-2:] == [999, 1000], "near the limit each publish is counted"


def test_MSG_2_after_a_second_it_is_counted_again(
    limited: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiting, "FRESH", 0.0)
    shop = limited(poison_max_messages=100)
    shop.charge(1)
    with shop.app.connection_for_write() as connection:  # another publisher
        for _ in range(99):
            connection.default_channel.client.lpush("celery", "{}")
    with pytest.raises(QueueFull):
        shop.charge(2)


def test_MSG_3_a_retry_and_what_stands_for_a_task_are_sent_whatever_waits(
    limited: Callable[..., Shop],
) -> None:
    shop = limited(poison_max_messages=1, task_always_eager=False)
    shop.charge(1)
    for name in ("charge", "plain"):
        task: Task[Any, Any] = shop.task(name)
        task.push_request(id="x", args=[2], kwargs={}, called_directly=False, is_eager=False, retries=0)
        with pytest.raises(Exception, match="Retry"):
            task.retry(countdown=0)
        task.pop_request()
    with pytest.raises(QueueFull):
        shop.charge(3)
    assert shop.queued() == [1, 2, 2]


def _batches(shop: Shop) -> dict[str, Any]:
    """Canvas of three messages that go at once, two of them to `celery`."""
    one, mail = shop.task("charge").si(1), shop.task("pack").si(2).set(queue="mail")
    last = shop.task("pack").si(3)
    return {
        "a group": group(one, mail, one),
        "a chord": chord([one, mail, one], last),
        "a group of chains and a chord": group(chain(one, last, last), chord([one, mail], last)),
        "a chain that begins with a group": chain(group(one, mail, one), last),
        "a generator": group(each for each in (one, mail, one)),
    }


@BROKERS
@pytest.mark.parametrize(
    "name",
    [
        "a group",
        "a chord",
        "a group of chains and a chord",
        "a chain that begins with a group",
        "a generator",
    ],
)
def test_MSG_6_a_batch_is_published_as_a_whole_or_not_at_all(
    limited: Callable[..., Shop], redis_url: str, name: str
) -> None:
    shop = limited(poison_queues={"celery": {"max_messages": 3}}, result_backend=redis_url)
    shop.charge(0, 0)
    with pytest.raises(QueueFull) as caught:
        _batches(shop)[name].apply_async()
    assert (caught.value.queue, caught.value.depth, caught.value.wanted) == ("celery", 2, 2)
    assert shop.queued("mail") == [] and shop.queued() == [0, 0]
    _batches(shop)[name].apply_async()
    assert (shop.queued("mail"), shop.queued()) == ([2], [1, 1])


def test_MSG_6_a_chord_whose_backend_polls_sends_no_poll_either(limited: Callable[..., Shop]) -> None:
    shop = limited(poison_queues={"celery": {"max_messages": 1}}, result_backend="cache+memory://")
    with pytest.raises(QueueFull, match="2 more were to be added"):
        _batches(shop)["a chord"].apply_async()
    assert shop.queued() == shop.queued("mail") == []


def test_MSG_6_what_goes_to_the_outbox_needs_no_room(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop(poison_max_messages=1)
    _batches(shop)["a group"].apply_async()
    assert (shop.waiting(), shop.waiting("mail")) == ([1, 1], [2])


@BROKERS
def test_MSG_4_what_a_full_queue_does_not_take_stays_in_the_outbox_and_blocks_nobody_else(
    new_shop: Callable[..., Shop], broker_url: str
) -> None:
    limit: dict[str, Any] = {
        "poison_queues": {"celery": {"max_messages": 2}},
        "poison_outbox_auto_block": True,
    }
    shop = new_shop("" if broker_url.startswith("redis://") else broker_url, **limit)
    shop.charge(1, 2, 3, 4, 5)
    shop.charge(*range(5), queue="other")
    shop.relay()
    assert (shop.queued("other"), shop.waiting("other")) == ([*range(5)], [])
    assert shop.waiting() == [3, 4, 5]
    assert (shop.lanes()["celery"].cause, shop.lanes()["celery"].blocked) == ("resources", None)
    assert [report.reason for report in shop.reports] == ["queue 'celery' holds 2 messages, its limit is 2"]
    assert shop.queued() == [1, 2]
    shop.outbox.resend()
    shop.relay()
    assert (shop.queued(), shop.waiting()) == ([3, 4], [5])


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "another-redis"])
def test_MSG_5_the_oldest_make_room_and_come_back_byte_for_byte(
    new_shop: Callable[..., Shop], broker_url: str, elsewhere: bool
) -> None:
    is_redis = broker_url.startswith("redis")
    if elsewhere and not is_redis:
        return
    limit: dict[str, Any] = {"poison_max_messages": 3, "poison_max_messages_behavior": "discard_old"}
    broker = broker_url if elsewhere or not is_redis else ""
    shop = new_shop(broker, poison_outbox=False, task_create_missing_queues=True, **limit)
    shop.charge(1, compression="gzip", headers={"x-tenant": "acme"})
    shop.charge(2, 3, 4, 5)
    assert shop.queued() == [3, 4, 5]
    desk = Quarantine(shop.app)
    found = {record.mid: record for record in desk.list(state="FAIL")}
    assert {(r.cause, r.resolution, r.actor) for r in found.values()} == {
        ("queue_full", "discarded", "poison_max_messages")
    }
    assert sorted(record.arguments for record in found.values()) == ["1", "2"]
    assert shop.events() == ["queue_filling", "discarded", "discarded"]
    assert all(outcome.done for outcome in desk.restore(found))
    assert all(outcome.done for outcome in desk.release(sorted(found, key=lambda mid: found[mid].arguments)))
    with shop.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery", no_ack=True)
        first, second = queue.get(timeout=5), queue.get(timeout=5)
        queue.close()
    assert first.headers["x-tenant"] == "acme"
    assert (first.payload[0], second.payload[0]) == ([1], [2])


def test_MSG_5_while_the_ledger_is_away_nothing_is_discarded_and_publishing_goes_on(
    new_shop: Callable[..., Shop], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    limit = {"poison_max_messages": 1, "poison_max_messages_behavior": "discard_old"}
    shop = new_shop(redis_url, poison_outbox=False, poison_redis_url="redis://127.0.0.1:1/0", **limit)
    shop.charge(1, 2)
    assert shop.queued() == [1, 2]
    assert "queue celery grows beyond its limit" in caplog.text


def test_MSG_3_what_is_tied_to_the_success_of_a_task_is_sent_whatever_waits(
    new_shop: Callable[..., Shop],
) -> None:
    shop = new_shop(poison_max_messages=1)
    taken: list[Outgoing] = []
    with captured(lambda message: not taken.append(message.as_tied())):
        shop.charge(1, 2)
    shop.outbox.add(str(lane_of(taken[0])), [*map(pack, taken)])
    shop.relay()
    assert shop.queued() == [1, 2]


@BROKERS
def test_MSG_7_at_80_percent_of_a_limit_somebody_is_warned_once(
    limited: Callable[..., Shop], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[dict[str, Any]] = []

    def hear(**told: Any) -> None:
        heard.append({name: told[name] for name in ("queue", "waiting", "limit")})

    signals.queue_filling.connect(hear)
    shop = limited(poison_queues={"celery": {"max_messages": 10}})
    shop.charge(*range(7))
    assert not heard
    shop.charge(7, 8)
    other = LimitsExtension(shop.plugin)  # another process
    with shop.app.connection_for_write() as connection:
        other.take(connection, {"celery": 1})
    signals.queue_filling.disconnect(hear)
    assert heard == [{"queue": "celery", "waiting": 7, "limit": 10}]
    assert shop.events() == ["queue_filling"]
    assert caplog.text.count("queue celery fills up: 7 messages wait, its limit is 10") == 1
    wait_until(
        lambda: "queue celery holds 9 messages, 90 % of its limit of 10" in overview(shop.app).warnings,
        what=lambda: str(overview(shop.app).warnings),
    )
    desk = overview(shop.app).as_dict()["queues"]
    assert desk[0] == {"queue": "celery", "waiting": 9, "parked": 0, "candidates": 0, "limit": 10}


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_MSG_3_what_is_above_a_limit_is_reported(limited: Callable[..., Shop]) -> None:
    shop = limited(poison_queues={"celery": {"max_messages": 2}})
    with exempt():
        shop.charge(1, 2, 3)
    wait_until(
        lambda: "queue celery holds 3 messages, 1 above its limit of 2" in overview(shop.app).warnings,
        what=lambda: str(overview(shop.app).warnings),
    )


def test_with_a_wrong_setting_publishing_goes_on(limited: Callable[..., Shop]) -> None:
    shop = limited(poison_max_messages=1)
    shop.plugin.override({"poison_max_messages": -1})
    shop.charge(1, 2)
    assert shop.queued() == [1, 2]


def test_a_broker_that_cannot_be_counted_keeps_nobody_from_publishing(
    limited: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    def depth(connection: Any, queue: str) -> int:
        raise OSError("no")

    monkeypatch.setattr(limiting, "depth", depth)
    shop = limited(poison_max_messages=1)
    shop.charge(1, 2)
    assert shop.queued() == [1, 2]
