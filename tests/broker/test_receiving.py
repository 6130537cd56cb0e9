"""Receiving from Redis: no moment in which a message belongs to nobody, and everything goes back in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kombu
import pytest
import redis

from celery_poison.testing import wait_until
from tests import PATIENCE, sampled
from tests.apps.harness import Fleet
from tests.broker.kit import Site

Build = Callable[..., Fleet]


def _done(fleet: Fleet) -> int:
    return len(fleet.marks.count("healthy", "end"))


def _await(fleet: Fleet, condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what=lambda: f"{what}\n{fleet.log_text()[-4000:]}")


def _keys(fleet: Fleet) -> set[str]:
    client = redis.Redis.from_url(fleet.broker_url, decode_responses=True)
    return {key for key in client.keys("*") if "poison" not in key and "_kombu" not in key}


def test_EMS_6_no_message_is_lost_when_workers_are_killed_while_they_receive(
    new_fleet: Build, redis_url: str
) -> None:
    """Each kill comes while messages stream in: at whatever point of receiving the worker is."""
    fleet = new_fleet(redis_url, worker_prefetch_multiplier=16)
    sent = 0
    for number in range(5):
        with fleet.worker(f"w{number}", defaults=True) as worker:
            worker.wait_ready()
            before = sum(fleet.marks.count("healthy", "start").values())
            while sum(fleet.marks.count("healthy", "start").values()) < before + 5:
                fleet.send("healthy", sent, 0.0)
                sent += 1
            worker.kill_group()
            worker.wait()
    with fleet.worker("last", defaults=True):
        _await(fleet, lambda: _done(fleet) == sent, f"all {sent} done")
        _await(fleet, lambda: not _keys(fleet), "nothing left on the broker")
        _await(fleet, lambda: not fleet.quarantine.list(candidates=True), "bystanders cleared")
    assert not fleet.quarantine.list()


@pytest.mark.parametrize("prefix", sampled(["shop:"], [""]))
def test_EMS_6_priorities_several_queues_and_a_key_prefix_work(
    new_fleet: Build, redis_url: str, prefix: str
) -> None:
    options: dict[str, Any] = {"global_keyprefix": prefix} if prefix else {}
    fleet = new_fleet(
        redis_url,
        broker_transport_options=options | {"unacked_key": "mine", "unacked_index_key": "mine_index"},
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
    )
    for n in range(12):
        fleet.send("healthy", n, 0.2, queue="a" if n % 2 else "b", priority=(n * 3) % 10)
    with fleet.worker(queues=["a", "b"], defaults=True) as first:
        _await(fleet, lambda: fleet.marks.all("healthy", "start"), "begun")
        first.kill_group()
        first.wait()
    with fleet.worker("w2", queues=["a", "b"], defaults=True):
        _await(fleet, lambda: _done(fleet) == 12, "all done")
        _await(fleet, lambda: not _keys(fleet), "nothing left behind, under whatever name")
        _await(fleet, lambda: not fleet.quarantine.list(candidates=True), "cleared")


def test_flushed_scripts_are_loaded_again(new_fleet: Build, redis_url: str) -> None:
    fleet = new_fleet(redis_url)
    with fleet.worker(defaults=True):
        assert fleet.send("healthy", 0).get(timeout=PATIENCE) == 0
        redis.Redis.from_url(fleet.broker_url).script_flush()
        for n in range(1, 20):
            fleet.send("healthy", n)
        _await(fleet, lambda: _done(fleet) == 20, "all done")
    assert not fleet.quarantine.list() and not fleet.quarantine.list(candidates=True)


def test_unguarded_tasks_of_a_dead_worker_are_put_back_too_and_never_flagged(
    new_fleet: Build, redis_url: str
) -> None:
    fleet = new_fleet(redis_url, task_acks_late=True)
    fleet.app.send_task("celery.accumulate", args=(1,), queue="elsewhere")
    for n in range(6):
        fleet.send("healthy", n, 0.5)
    with fleet.worker(concurrency=1, queues=["celery", "elsewhere"], defaults=True) as first:
        _await(fleet, lambda: fleet.marks.all("healthy", "start"), "begun")
        first.kill_main()
        first.wait()
    with fleet.worker("w2", queues=["celery", "elsewhere"], defaults=True):
        _await(fleet, lambda: _done(fleet) == 6, "all done")
        _await(fleet, lambda: not _keys(fleet), "nothing left on the broker")


def test_EMS_6_messages_are_received_in_one_step_once_mingle_has_its_answers(site: Site) -> None:
    """Celery waits for them on the channel by which it receives tasks later, without acknowledging them."""
    receiver, answers = site.receiver(queues=["a"]), list[Any]()
    queue = kombu.Queue("answers", exchange="", routing_key="answers")
    mingle = kombu.Consumer(
        receiver.channel, [queue], no_ack=True, on_message=answers.append, auto_declare=False, accept=["json"]
    )
    mingle.consume()
    site.send("hello", queue="answers")
    receiver.drain(lambda: answers)
    assert not site.entries(), "nobody would ever acknowledge it"
    mingle.cancel()
    receiver.drain(lambda: receiver.channel._fetches)
    site.send(0)
    (message,) = receiver.receive(1)
    assert message.registered


def test_what_comes_of_a_queue_that_was_cancelled_meanwhile_goes_back_to_its_front(redis_url: str) -> None:
    """Celery's `cancel_consumer`, and a pause: a poll is on its way to Redis, and cannot be called back."""
    site = Site(redis_url)
    try:
        receiver = site.receiver(queues=["a"])
        with pytest.raises(TimeoutError):
            receiver.connection.drain_events(timeout=0.01)
        assert receiver.channel._in_poll, "it waits for a message"
        receiver.consumer.cancel_by_queue("a")
        site.send(1, 2)
        receiver.drain(lambda: not receiver.channel._in_poll and not site.entries())
        assert [message["headers"]["poison_mid"] for message in site.waiting()["a"]] == ["m1", "m2"]
        assert not receiver.messages

        receiver.consumer.add_queue(kombu.Queue("a", exchange="", routing_key="a"))
        receiver.consumer.consume()
        assert [message.payload for message in receiver.receive(2)] == [1, 2], "and it is consumed again"
    finally:
        site.close()
