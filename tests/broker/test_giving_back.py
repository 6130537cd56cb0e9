"""What a living worker gives back by itself: at its shutdown, on a lost connection, on reject."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.broker.redis.unacked import arriving_key
from tests.broker.kit import Site

NewSite = Callable[..., Site]


def _mids(site: Site, key: str = "a") -> list[str]:
    return [message["headers"]["poison_mid"] for message in site.waiting().get(key, [])]


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_what_was_prefetched_goes_back_in_its_order_as_redelivered_under_fresh_tags(
    new_site: NewSite, prefix: str
) -> None:
    site = new_site(global_keyprefix=prefix)
    site.send(*range(5))
    tags = {m["properties"]["delivery_tag"] for m in site.waiting()["a"]}
    receiver = site.receiver()
    receiver.receive(5)[1].ack()
    site.send(5)
    receiver.connection.close()
    assert _mids(site) == ["m0", "m2", "m3", "m4", "m5"]
    *restored, new = site.waiting()["a"]
    assert all(m["headers"]["redelivered"] for m in restored) and "redelivered" not in new["headers"]
    assert not tags & {m["properties"]["delivery_tag"] for m in restored}
    assert site.keys() == {f"{prefix}a"}


def test_giving_back_asks_for_no_transaction(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis.Redis.transaction", None)
    site.send(0, 1, 2)
    receiver = site.receiver()
    first, second, _ = receiver.receive(3)
    first.reject(requeue=True)
    second.to_front = True
    second.reject(requeue=True)
    receiver.connection.close()
    assert _mids(site) == ["m2", "m1", "m0"]


def test_WAS_3_reject_sends_to_the_back_of_the_queue_and_to_front_to_its_front(site: Site) -> None:
    site.send(0, 1, 2, 3)
    receiver = site.receiver()
    first, second, *_ = receiver.receive(4)
    site.send(4)
    receiver.consumer.cancel()
    first.reject(requeue=True)
    second.to_front = True
    second.reject(requeue=True)
    assert _mids(site) == ["m1", "m4", "m0"]
    assert len(site.entries()) == len(site.scores()) == 2
    receiver.connection.close()
    assert _mids(site) == ["m2", "m3", "m1", "m4", "m0"]


def test_EMS_6_a_message_whose_delivery_was_lost_with_the_connection_goes_back_when_that_is_closed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis registered it, and its answer did not arrive."""
    receiver = site.receiver()
    receiver.drain(lambda: receiver.channel._tag_in_flight)
    site.send(0)
    parse = receiver.channel.client.parse_response

    def cut(connection: object, command: str, **options: object) -> object:
        reply = parse(connection, command, **options)
        if command == "EVALSHA" and reply:
            raise ConnectionResetError("cut")
        return reply

    monkeypatch.setattr(receiver.channel.client, "parse_response", cut)
    with pytest.raises(ConnectionResetError):
        receiver.drain(lambda: False)
    assert len(site.entries()) == 1 and not receiver.messages
    receiver.connection.close()
    assert _mids(site) == ["m0"] and site.keys() == {"a"}


def test_EMS_6_a_message_that_was_never_registered_goes_back_when_its_worker_leaves(site: Site) -> None:
    receiver = site.receiver(queues=["a"])
    receiver.drain(lambda: receiver.channel._announced)
    site.send(0, 1)
    receiver.connection.connection.cycle.discard(receiver.channel)
    site.raw.lmove("a", arriving_key(receiver.boot_id, "a"), "RIGHT", "LEFT")
    receiver.consumer.cancel()
    receiver.connection.close()
    assert site.everything() == ["m0", "m1"] and site.keys() == {"a"}


def test_NEW_9_a_connection_that_was_in_the_making_receives_under_the_name_that_its_worker_has_now(
    site: Site,
) -> None:
    receiver = site.receiver()
    receiver.boot_id += "r1"  # it was taken for dead before the connection was there
    with receiver.kind(site.url, transport_options=site.options) as late:
        assert late.default_channel.boot_id == receiver.boot_id
        assert receiver.channel.boot_id + "r1" == receiver.boot_id
