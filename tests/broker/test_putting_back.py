"""A dead worker's messages go back where they came from: each once, in order, under a fresh tag (EMS-6)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kombu.transport.redis import QoS
from redis.exceptions import ResponseError

from celery_poison.broker.redis import unacked
from celery_poison.broker.redis.unacked import Unacked
from celery_poison.testing import RedisServer
from tests.broker.kit import Killed, Site, killed_after, new_boot_id

NewSite = Callable[..., Site]

OPTIONS = {
    "defaults": {},
    "prefix": {"global_keyprefix": "shop:"},
    "renamed": {"unacked_key": "mine", "unacked_index_key": "mine_index", "unacked_mutex_key": "mine_mutex"},
    "renamed below a prefix": {"global_keyprefix": "shop:", "unacked_key": "mine"},
    "steps": {"sep": ":", "priority_steps": list(range(10)), "queue_order_strategy": "priority"},
    "sorted": {"queue_order_strategy": "sorted", "max_connections": 2},
}


def _dead(site: Site, count: int, **kwargs: Any) -> str:
    """The boot id of a worker that received so many messages and is gone."""
    receiver = site.receiver(**kwargs)
    receiver.receive(count)
    receiver.die()
    return receiver.boot_id


def _without_marks(message: Any) -> Any:
    """What putting back must leave alone."""
    copy = json.loads(json.dumps(message))
    copy["headers"].pop("redelivered", None)
    copy["properties"]["delivery_info"].pop("redelivered", None)
    copy["properties"].pop("delivery_tag")
    return copy


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_EMS_6_all_go_back_to_their_queue_and_priority_in_their_order(
    new_site: NewSite, options: dict[str, Any]
) -> None:
    site = new_site(**options)
    for n in range(24):
        site.send(n, queue="ab"[n % 2], priority=(0, 3, 7, 9)[n % 4])
    before = site.waiting()
    assert len(before) == 4, "two queues at two priorities each"
    boot_id = _dead(site, 24)
    assert not site.waiting() and len(site.entries()) == 24
    returned = site.put_back(boot_id)
    after = site.waiting()
    assert {key: [_without_marks(m) for m in rows] for key, rows in after.items()} == {
        key: [_without_marks(m) for m in rows] for key, rows in before.items()
    }
    assert site.keys() == {f"{site.prefix}{key}" for key in after}, "nothing else is left"
    assert returned.count == 24 and returned.queues == {"a": 12, "b": 12}
    assert returned.mids == {f"m{n}" for n in range(24)}


def test_EMS_6_redelivered_as_kombu_says_it_and_under_a_tag_of_its_own(site: Site) -> None:
    site.send(0)
    (tag,) = (m["properties"]["delivery_tag"] for m in site.waiting()["a"])
    site.put_back(_dead(site, 1))
    (message,) = site.waiting()["a"]
    assert message["headers"]["redelivered"] is True
    assert message["properties"]["delivery_info"]["redelivered"] is True
    assert message["properties"]["delivery_tag"] not in ("", tag)
    assert (message["headers"]["empty"], message["headers"]["big"]) == ([], 2**60), "as cjson could not"


def test_EMS_6_the_eta_stays_in_the_headers(site: Site) -> None:
    site.send(0)
    (message,) = site.waiting()["a"]
    message["headers"]["eta"] = "2077-01-01T00:00:00"
    site.raw.lset("a", 0, json.dumps(message))
    site.put_back(_dead(site, 1))
    assert site.waiting()["a"][0]["headers"]["eta"] == "2077-01-01T00:00:00"


def test_EMS_6_only_the_messages_of_that_worker_go_back(site: Site) -> None:
    site.send(1)
    dead = _dead(site, 1)
    site.send(2)
    alive = site.receiver(boot_id=f"{dead}r2")
    alive.receive(1)
    assert site.put_back(dead).count == 1
    assert [m["headers"]["poison_mid"] for m in site.waiting()["a"]] == ["m1"]
    assert [tag.rpartition("-")[0] for tag in site.entries()] == [f"{dead}r2"]


def test_EMS_6_an_entry_with_an_exchange_goes_where_kombu_would_send_it(site: Site) -> None:
    site.send(0)
    boot_id = _dead(site, 1)
    ((tag, (message, _, _)),) = site.entries().items()
    site.raw.hset(site.unacked, tag, json.dumps([message, "orders", "new"]))
    site.raw.sadd(
        "_kombu.binding.orders", "new\x06\x16\x06\x16a", "old\x06\x16\x06\x16b", "new\x06\x16\x06\x16c"
    )
    assert site.put_back(boot_id).queues == {"a": 1, "c": 1}
    tags = [site.waiting()[queue][0]["properties"]["delivery_tag"] for queue in "ac"]
    assert len(set(tags)) == 2, "two messages now, and each has a tag of its own"


def test_EMS_6_what_nobody_can_read_stays_and_stops_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.send(*range(4))
    boot_id = _dead(site, 4)
    garbage = {
        9001: b"\xff",
        9002: b"not json",
        9003: b"{}",
        9004: b'["message", "", null]',
        9005: b'[{"body": "", "headers": {}, "properties": {}}, "nowhere", "x"]',
        9006: b'[{"body": "", "properties": {}}, "", null]',
        9007: b"[" * 100_000,
    }
    for number, entry in garbage.items():
        site.raw.hset(site.unacked, f"{boot_id}-{number}", entry)
        site.raw.zadd(site.index, {f"{boot_id}-{number}": 1.0})
    returned = site.put_back(boot_id)
    assert returned.count == 4
    assert set(site.raw.hvals(site.unacked)) == set(garbage.values()), "as it was"
    told = len(caplog.records)
    assert told >= len(garbage)
    assert site.put_back(boot_id).count == 4
    assert len(caplog.records) == told, "said once"


@pytest.mark.parametrize(
    ("part", "name"), [("headers", "x-death"), ("properties", "priority"), ("headers", "poison_mid")]
)
def test_NEW_5_infinity_of_a_publisher_keeps_no_message_in_unacked(site: Site, part: str, name: str) -> None:
    site.send(0)
    (message,) = site.waiting()["a"]
    message[part][name] = [{"count": float("inf")}] if name == "x-death" else float("inf")
    site.raw.lset("a", 0, json.dumps(message))
    assert site.put_back(_dead(site, 1)).count == 1
    assert site.waiting()["a"] and not site.entries()


def test_NEW_5_what_is_no_message_goes_back_to_its_queue_as_somebody_pushed_it(site: Site) -> None:
    boot_id = new_boot_id()
    items = [b"not json", b'\xff, "", "b"', b"[5", b"{}", b'{"properties": 5}', b"", b"[" * 100_000]
    for number, item in enumerate(items):
        site.raw.hset(site.unacked, f"{boot_id}-{number}", b"[" + item + b', "", "a"]')
        site.raw.zadd(site.index, {f"{boot_id}-{number}": 1.0})
    returned = site.put_back(boot_id)
    assert (returned.count, returned.queues) == (len(items), {"a": len(items)})
    assert site.raw.lrange("a", 0, -1) == items[::-1], "the oldest is delivered first"


def test_EMS_6_messages_without_headers_or_delivery_info_go_back_too(site: Site) -> None:
    boot_id = new_boot_id()
    for number, headers in enumerate((None, [], "x")):
        message = {"body": "", "headers": headers, "properties": {"delivery_info": None}}
        site.raw.hset(site.unacked, f"{boot_id}-{number}", json.dumps([message, "", "a"]))
        site.raw.zadd(site.index, {f"{boot_id}-{number}": 1.0})
    assert site.put_back(boot_id).count == 3
    assert [message["headers"] for message in site.waiting()["a"]] == [None, [], "x"]


def test_EMS_6_what_redis_refuses_to_push_stays_unacknowledged(site: Site) -> None:
    site.send(0, queue="a")
    site.send(1, queue="b")
    boot_id = _dead(site, 2)
    site.raw.set("a", "not a list")
    assert site.put_back(boot_id).count == 1
    assert [entry[0]["headers"]["poison_mid"] for entry in site.entries().values()] == ["m0"]
    assert len(site.scores()) == 1


def test_EMS_6_what_a_full_redis_refuses_is_put_back_when_it_has_room(new_site: NewSite) -> None:
    with RedisServer() as server:
        site = new_site(server.url())
        site.send(0, 1)
        boot_id = _dead(site, 2)
        server.client().config_set("maxmemory", 1)
        with pytest.raises(ResponseError, match="maxmemory"):
            site.put_back(boot_id)
        server.client().config_set("maxmemory", 0)
        assert len(site.entries()) == 2
        assert site.put_back(boot_id).count == 2


def test_EMS_6_what_was_acknowledged_meanwhile_does_not_come_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(0, 1)
    boot_id = _dead(site, 2)
    execute = Unacked._execute

    def late(self: Unacked, moves: Any, *args: Any) -> int:
        site.raw.hdel(site.unacked, moves[0].tag)
        return execute(self, moves, *args)

    monkeypatch.setattr(Unacked, "_execute", late)
    assert site.put_back(boot_id).mids == {"m0"}, "the newest is read first, and was acknowledged"
    assert not site.entries() and not site.scores()


def test_EMS_6_an_entry_that_changed_meanwhile_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.send(0)
    boot_id = _dead(site, 1)
    execute = Unacked._execute

    def late(self: Unacked, moves: Any, *args: Any) -> int:
        site.raw.hset(site.unacked, moves[0].tag, '["another"]')
        return execute(self, moves, *args)

    monkeypatch.setattr(Unacked, "_execute", late)
    assert site.put_back(boot_id).count == 0
    assert site.raw.hvals(site.unacked) == [b'["another"]'] and len(site.scores()) == 1


def test_EMS_6_killed_at_every_command_the_next_one_finishes_the_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacked, "BATCH", 3)
    wanted = sorted(f"m{n}" for n in range(9))
    for commands in range(200):
        site.raw.flushdb()
        site.send(*range(7))
        boot_id = _dead(site, 7)
        site.send(7, 8)
        for _ in range(2):
            site.raw.lmove("a", f"poison.arriving.{boot_id}.a", "RIGHT", "LEFT")
        site.raw.sadd(f"poison.arriving.{boot_id}", "a")
        try:
            with killed_after(commands):
                site.put_back(boot_id, ())
        except Killed:
            assert site.everything() == wanted, f"lost or doubled after {commands} commands"
            returned = site.put_back(boot_id, ())
            assert returned.mids == {f"m{n}" for n in range(7)}, "what came back before is not forgotten"
            finished = False
        else:
            finished = True
        assert site.keys() == {"a"} and site.everything() == wanted, f"after {commands} commands"
        assert len(site.waiting()["a"]) == 9
        if finished:
            break
    else:
        raise AssertionError("it never got to its end")
    assert commands > 20, "it was killed at each of its commands"


def test_EMS_4_two_at_once_put_each_message_back_once(site: Site) -> None:
    site.send(*range(1500))
    boot_id = _dead(site, 1500)
    both, counts = threading.Barrier(2), []
    twin = Site(site.url)

    def work(at: Site) -> None:
        both.wait()
        counts.append(at.put_back(boot_id).count)

    threads = [threading.Thread(target=work, args=(at,)) for at in (site, twin)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(counts) == 1500, "the last one knows of all"
    assert site.everything() == sorted(f"m{n}" for n in range(1500))
    assert site.keys() == {"a"}
    twin.close()


def test_EMS_8_a_late_acknowledgement_removes_nothing_of_the_new_owner(site: Site) -> None:
    site.send(0)
    zombie = site.receiver()
    (message,) = zombie.receive(1)
    site.put_back(zombie.boot_id)
    heir = site.receiver()
    heir.receive(1)
    message.ack()
    zombie.channel.qos.restore_unacked()
    assert [tag.rpartition("-")[0] for tag in site.entries()] == [heir.boot_id]
    assert not site.waiting(), "and puts nothing back either"


def test_EMS_6_large_messages_are_moved_a_few_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    execute = Unacked._execute

    def measured(self: Unacked, moves: Any, *args: Any) -> int:
        sizes.append(len(moves))
        return execute(self, moves, *args)

    monkeypatch.setattr(Unacked, "_execute", measured)
    monkeypatch.setattr(unacked, "BATCH_BYTES", 1_000_000)
    site.send(*["x" * 100_000] * 7)
    assert site.put_back(_dead(site, 7)).count == 7
    assert sizes == [2, 2, 2, 1]


def test_EMS_6_where_scripts_are_forbidden_kombus_own_way_is_taken(
    new_site: NewSite, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = new_site(redis_url)
    name = new_boot_id()
    plain.raw.execute_command("ACL", "SETUSER", name, "on", "nopass", "~*", "&*", "+@all", "-eval")
    site = new_site(redis_url.replace("redis://", f"redis://{name}:x@"))
    site.send(0, 1)
    boot_id = _dead(site, 2)
    returned = site.put_back(boot_id)
    assert (returned.count, returned.queues) == (2, {"a": 2})
    assert plain.everything() == ["m0", "m1"] and plain.keys() == {"a"}
    plain.raw.acl_deluser(name)


def test_put_back_does_not_watch_the_hash_of_all_workers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QoS, "restore_by_tag", None)
    monkeypatch.setattr("redis.Redis.transaction", None)
    site.send(0)
    assert site.put_back(_dead(site, 1)).count == 1


@pytest.mark.parametrize("announced", [True, False])
def test_EMS_6_what_was_arriving_goes_back_unchanged_in_its_order_and_not_as_redelivered(
    new_site: NewSite, announced: bool
) -> None:
    site = new_site(global_keyprefix="shop:")
    site.send(0)
    boot_id = _dead(site, 1)
    site.send(1, 2, 3)
    before = site.waiting()["a"]
    for _ in range(2):
        site.raw.lmove("shop:a", f"shop:poison.arriving.{boot_id}.a", "RIGHT", "LEFT")
    site.raw.delete(f"shop:poison.arriving.{boot_id}")
    if announced:
        site.raw.sadd(f"shop:poison.arriving.{boot_id}", "a")
    returned = site.put_back(boot_id, () if announced else ("a", "b"))
    assert site.waiting()["a"][1:] == before
    assert site.waiting()["a"][0]["headers"]["poison_mid"] == "m0", "what had arrived comes before it"
    assert returned.count == 3 and returned.queues == {"a": 3} and returned.mids == {"m0"}
    assert site.keys() == {"shop:a"}


def test_EMS_6_a_worker_announces_each_queue_before_it_takes_anything_from_it(site: Site) -> None:
    receiver = site.receiver()
    register = f"poison.arriving.{receiver.boot_id}"
    receiver.drain(lambda: site.raw.smembers(register))
    (first,) = site.raw.smembers(register)  # any: older kombu keeps queues in no order
    site.send(0, queue=first.decode())  # after a message it is the other queue's turn
    receiver.drain(lambda: site.raw.smembers(register) == {b"a", b"b"})
    receiver.die()
    site.put_back(receiver.boot_id, ())
    assert site.keys() == {first.decode()}
