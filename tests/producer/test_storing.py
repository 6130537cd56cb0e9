"""What is published is stored in the caller's call, and reaches the broker in its order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from celery import chain, group

from celery_poison import errors
from celery_poison.errors import LedgerUnavailable
from celery_poison.extensions.outbox.lanes import Copy, SendingFailure
from celery_poison.extensions.outbox.packing import unpack
from celery_poison.headers import MARK, MID, OUTBOX, PARK, SENT
from celery_poison.testing import RedisServer
from celery_poison.testing.servers import wait_until
from tests.harness.proxy import TcpProxy
from tests.producer.kit import Shop

BROKERS = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


@BROKERS
def test_TP1_1_a_publish_is_stored_first_and_then_sent_in_order(shop: Shop) -> None:
    shop.charge(*range(250))
    assert shop.queued() == []
    assert shop.waiting() == [*range(250)]
    shop.relay()
    assert shop.queued() == [*range(250)]
    assert shop.waiting() == [] and shop.lanes() == {}
    assert not shop.ledger.client.hlen(shop.ledger.keys.parked), "nothing is remembered of what arrived once"


def test_TP1_1_nobody_waits_for_those_whose_messages_the_broker_does_not_take(shop: Shop) -> None:
    pool = shop.app.amqp.producer_pool
    held = [pool.acquire(block=False) for _ in range(pool.limit)]  # by threads that send without an outbox
    try:
        caller = threading.Thread(target=shop.charge, args=(1,), daemon=True)
        caller.start()
        wait_until(lambda: not caller.is_alive(), what="the caller has its answer")
        assert shop.waiting() == [1]
    finally:
        for each in held:
            each.release()


@BROKERS
def test_TP1_1_a_queue_that_only_the_publisher_knows_is_declared_and_consumed_by_nobody_for_that(
    shop: Shop,
) -> None:
    shop.charge(1, queue="seasonal")
    del shop.app.amqp.queues["seasonal"]  # as in the process of a relay that never published to it
    shop.relay()
    assert "seasonal" not in shop.app.amqp.queues
    assert shop.queued("seasonal") == [1] and shop.lanes() == {}


def test_TP1_1_beside_another_redis_as_broker_the_message_is_noted_sent_and_forgotten(
    new_shop: Callable[..., Shop], redis_url: str
) -> None:
    shop = new_shop(redis_url)
    shop.charge(1, 2)
    shop.relay()
    assert shop.queued() == [1, 2]
    assert not shop.ledger.client.hlen(shop.ledger.keys.parked)


def test_TP1_8_a_message_that_may_be_sent_twice_is_on_record_as_a_published_parking(shop: Shop) -> None:
    shop.charge(1)
    lease, _ = shop.outbox.take(60_000, 10, trouble=False, notes=True)
    assert lease and [each.note for each in lease.messages] == [0]
    ((mid, parked, _),) = shop.ledger.read.parked()
    assert (parked.state, parked.start.task, parked.start.queue) == ("published", "shop.charge", "celery")
    assert mid == unpack(lease.messages[0].packed).mid
    shop.outbox.note_sent(lease, [Copy(lease.messages[0].seq, mid)])
    assert not [*shop.ledger.read.parked()]


def test_TP1_1_only_one_relay_has_a_lane_at_a_time_and_a_later_one_fences_it(shop: Shop) -> None:
    shop.charge(1, 2)
    first, _ = shop.outbox.take(20, 1, trouble=False, notes=False)
    second = None
    while second is None:  # the lease of the first is over
        second, _ = shop.outbox.take(60_000, 1, trouble=False, notes=False)
    assert first and second.fence > first.fence
    assert shop.outbox.take(60_000, 1, trouble=False, notes=False)[0] is None
    assert not shop.outbox.note_sent(first, [Copy(first.messages[0].seq, "", "celery", "x")])
    assert shop.outbox.note_failure(first, SendingFailure(verdict="failed", wait_ms=0, seq=1)) is None
    assert shop.waiting() == [1, 2] and shop.queued() == []


def test_a_relay_with_nothing_to_do_asks_ever_less_often_until_there_is_something(shop: Shop) -> None:
    assert [shop.healthy.once() for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]
    shop.charge(1)
    assert [shop.healthy.once() for _ in range(3)] == [0.0, 1.0, 2.0]
    assert [shop.troubled.once() for _ in range(2)] == [1.0, 1.0], "nobody wakes that one"


def test_NEW_31_a_relay_that_leaves_waits_no_more_and_takes_no_wake_from_another(shop: Shop) -> None:
    stop, relay = threading.Event(), shop.healthy
    waiter = threading.Thread(target=lambda: _try(lambda: relay.wait(4.0, stop)))
    waiter.start()
    wait_until(lambda: _blocked(shop) == 1, what="it waits")
    stop.set()
    relay.wake()
    waiter.join()
    wait_until(lambda: _blocked(shop) == 0, what="Redis knows that it waits no more")
    relay.wait(4.0, stop)  # nor does it begin to


def test_a_relay_waits_no_longer_than_the_URL_allows_an_answer_to_take(shop: Shop) -> None:
    pool = shop.ledger.client.connection_pool
    pool.connection_kwargs["socket_timeout"] = 0.5
    pool.disconnect()
    assert not shop.healthy.wait(4.0, threading.Event()), "it ends by itself, and no answer is late"


def _try(wait: Callable[[], object]) -> None:
    with suppress(LedgerUnavailable):
        wait()


def _blocked(shop: Shop) -> int:
    return sum(
        client["cmd"] == "blpop" and "b" in client["flags"] for client in shop.ledger.client.client_list()
    )


def test_which_tasks_are_stored_says_the_call_else_the_task_else_the_app(shop: Shop) -> None:
    for name in ("charge", "direct", "plain"):
        shop.task(name).delay(1)
        shop.task(name).apply_async([2], outbox=True)
        shop.task(name).apply_async([3], outbox=False)
    assert shop.waiting() == [1, 2, 2, 2]
    assert shop.queued() == [3, 1, 3, 1, 3]


def test_a_task_can_ask_for_the_outbox_by_itself(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop(poison_outbox=False)
    shop.task("charge").delay(1)
    shop.task("charge").outbox = True
    shop.task("charge").delay(2)
    assert (shop.queued(), shop.waiting()) == ([1], [2])


def test_the_message_arrives_as_celery_would_have_sent_it(shop: Shop) -> None:
    options: dict[str, Any] = {"priority": 3, "expires": 600, "headers": {"mine": "x"}, "compression": "gzip"}
    result = shop.task("charge").apply_async([1], outbox=True, **options)
    shop.task("charge").apply_async([1], task_id=result.id, outbox=False, **options)
    shop.relay()
    seen = []
    with shop.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery", no_ack=True)
        for _ in range(2):
            message = queue.get(timeout=5)
            headers = {n: v for n, v in message.headers.items() if n not in (MID, OUTBOX, SENT, "expires")}
            properties = {n: v for n, v in message.properties.items() if n != "delivery_tag"}
            seen.append((message.body, message.content_type, message.content_encoding, headers, properties))
        queue.close()
    assert seen[0] == seen[1]


def test_canvas_and_names_of_tasks_pass_through_the_outbox(shop: Shop) -> None:
    charge = shop.task("charge")
    chain(charge.s(1), charge.si(2))()
    group(charge.s(3), charge.s(4))()
    shop.app.send_task("shop.charge", [5])
    assert shop.waiting() == [1, 3, 4, 5]
    assert shop.queued() == []


def test_queues_are_destinations_of_their_own(shop: Shop) -> None:
    shop.charge(1, 2, queue="mail")
    shop.charge(3)
    shop.relay()
    assert (shop.queued("mail"), shop.queued()) == ([1, 2], [3])


def test_a_message_of_bytes_survives(new_shop: Callable[..., Shop]) -> None:
    shop = new_shop(task_serializer="pickle", accept_content=["pickle", "json"])
    shop.charge(7)
    shop.relay()
    with shop.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery", no_ack=True)
        queue.consumer.accept = {"application/x-python-serialize"}
        assert queue.get(timeout=5).payload[0] == [7]
        queue.close()


# --- the ledger is away --------------------------------------------------------------------------------

GONE = "redis://127.0.0.1:1/0"


def test_while_the_ledger_is_away_messages_are_sent_directly_and_that_is_said_once(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(redis_url, redis_url)
    shop.plugin.override({"poison_redis_url": GONE})
    shop.charge(1, 2, 3)
    assert shop.queued() == [1, 2, 3]
    assert [each for each in caplog.messages if "cannot store" in each] != []
    assert len(caplog.messages) == 1
    shop.close()


def test_TP1_1_a_ledger_that_does_not_answer_keeps_the_caller_waiting_no_longer_than_the_setting_says(
    redis_server: RedisServer, new_redis_url: Callable[[], str]
) -> None:
    broker, ledger = new_redis_url(), new_redis_url()
    with TcpProxy("127.0.0.1", redis_server.port) as proxy:
        shop = Shop(broker, ledger)
        shop.plugin.override({"poison_redis_url": proxy.url(ledger), "poison_outbox_timeout": 0.9})
        shop.charge(1)
        assert shop.waiting() == [1]
        proxy.freeze()
        began = time.monotonic()
        shop.charge(2)
        # Unbounded it would be 5 s for each of several attempts.
        assert 0.2 < time.monotonic() - began < 4
        assert shop.queued() == [2], "it was sent directly"
        shop.close()


def test_with_fail_open_false_the_caller_is_told_and_nothing_is_sent(redis_url: str) -> None:
    shop = Shop(redis_url, redis_url, poison_fail_open=False)
    shop.plugin.override({"poison_redis_url": GONE})
    with pytest.raises(errors.LedgerUnavailable, match="not stored in the outbox, and not sent"):
        shop.charge(1)
    assert shop.queued() == []
    shop.close()


def test_TP1_6_no_message_is_marked_for_a_look_up_where_broker_and_ledger_are_one(shop: Shop) -> None:
    """Those of a relay's first batch were, and the next ones overtook them."""
    shop.charge(*range(3))
    shop.outbox.take(0, 100, trouble=False, notes=True)  # of a relay that died before it sent them
    shop.relay()
    sent = [json.loads(raw)["headers"] for raw in shop.ledger.client.lrange("celery", 0, -1)]
    assert len(sent) == 3 and not any({MARK, PARK} & headers.keys() for headers in sent)
    assert not shop.ledger.client.hlen(shop.ledger.keys.parked), "nothing need be remembered"
