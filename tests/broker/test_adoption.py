"""A dead worker's messages pass into other hands: each in one step, and never lost on the way (NEW-1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.broker.adoption import Adoption, Taken
from celery_poison.broker.unacked import owner_of
from tests.broker.kit import Killed, Receiver, Site, killed_after

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "prefix": {"global_keyprefix": "shop:"},
    "renamed": {"unacked_key": "mine", "unacked_index_key": "mine_index"},
}
EVEN = frozenset({"id-0", "id-2", "id-4"})


def _wanted(id: str, queue: str) -> bool:
    return id in EVEN and queue == "a"


def _dead(site: Site, *names: int) -> str:
    site.send(*names)
    receiver = site.receiver()
    receiver.receive(len(names))
    receiver.die()
    return receiver.boot_id


def _taker(site: Site) -> tuple[Receiver, Adoption]:
    """Somebody who consumes nothing that there is."""
    receiver = site.receiver(queues=["elsewhere"])
    return receiver, Adoption(receiver.channel)


def _take(adoption: Adoption, dead: str) -> tuple[list[Taken], list[str]]:
    taken: list[Taken] = []
    count, left = adoption.take(dead, adoption.tags_of(dead), _wanted, taken.append)
    assert count == len(taken)
    return taken, left


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_NEW_1_what_is_taken_arrives_as_it_was_and_is_gone_when_it_is_acknowledged(
    new_site: Callable[..., Site], options: dict[str, Any]
) -> None:
    site = new_site(**options)
    dead = _dead(site, 0, 1, 2, 3)
    before = {entry[0]["headers"]["id"]: entry[0] for entry in site.entries().values()}
    receiver, adoption = _taker(site)
    taken, left = _take(adoption, dead)
    assert [one.mid for one in taken] == ["m0", "m2"], "the oldest first"
    assert {owner_of(one.tag) for one in taken} == {receiver.boot_id}
    assert left == adoption.tags_of(dead), "the others stay, the newest first"
    assert len(left) == 2
    assert site.entries().keys() == site.scores().keys()

    for one in taken:
        message = receiver.channel.receive_taken(one.tag, one.payload, one.queue)
        assert (message.queue_name, message.delivery_tag) == ("a", one.tag)
        assert message.delivery_info["redelivered"]
        assert message._raw["body"] == before[message.headers["id"]]["body"]
        assert receiver.channel.held_by_process() >= {one.tag}, "its visibility timeout is renewed"
        message.ack()
    assert site.put_back(dead).count == 4, "all came back from the dead worker, by whichever way"
    assert site.everything() == ["m1", "m3"]


def test_NEW_1_whoever_is_killed_while_taking_loses_nothing_and_doubles_nothing(site: Site) -> None:
    for commands in itertools.count(1):
        site.raw.flushdb()
        dead = _dead(site, 0, 1, 2)
        receiver, adoption = _taker(site)
        adoption.tags_of(dead)  # its connection is open
        try:
            with killed_after(commands):
                _take(adoption, dead)
        except Killed:
            finished = False
        else:
            finished = True
        assert site.everything() == ["m0", "m1", "m2"]
        receiver.die()
        site.put_back(receiver.boot_id)
        site.put_back(dead)
        assert site.everything() == ["m0", "m1", "m2"]
        assert not site.entries()
        assert not site.scores()
        if finished:
            return


def test_NEW_1_what_somebody_else_has_moved_meanwhile_is_not_taken(site: Site) -> None:
    dead = _dead(site, 0)
    _, adoption = _taker(site)
    (tag,) = adoption.tags_of(dead)
    entry: Any = site.raw.hget(site.unacked, tag)
    wanted = adoption._read(entry, _wanted)
    assert wanted
    site.put_back(dead)
    assert not adoption._take(dead, tag, entry, wanted)
    assert site.everything() == ["m0"]
    assert not site.entries()


def test_NEW_1_what_is_not_to_be_understood_is_left_to_who_puts_it_back(site: Site) -> None:
    dead = _dead(site, 0, 2)
    first, second = sorted(site.entries())
    site.raw.hset(site.unacked, first, "{")
    site.raw.hdel(site.unacked, second)
    _, adoption = _taker(site)
    taken, left = _take(adoption, dead)
    assert (taken, sorted(left)) == ([], [first, second])
