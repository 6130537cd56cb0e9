"""Groups: their ids, that they are counted and found truly, and what that reads."""

from __future__ import annotations

from celery_poison import Quarantine
from celery_poison.desk.search import By, Filter, group_id
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper


def test_the_id_of_a_group_is_the_same_in_every_version() -> None:
    assert group_id("shop.render", "signal:9", "0123456789abcdef") == "b3ccc7f30280"
    assert group_id("shop.render", "signal:9") == "036bf3ae1880"


def test_a_group_without_a_known_fingerprint_is_not_the_group_of_all() -> None:
    assert group_id("shop.render", "oom", "") != group_id("shop.render", "oom")


def test_a_second_look_sees_what_came_and_what_left(fleet: Fleet, keeper: Keeper) -> None:
    quarantine = Quarantine(fleet.app)
    first = keeper.send_and_keep("fleet.healthy", 1)
    assert [group.count for group in quarantine.groups()] == [1]
    keeper.send_and_keep("fleet.healthy", 1)
    assert [group.count for group in quarantine.groups()] == [2]
    quarantine.discard([first])
    assert [group.count for group in quarantine.groups(by=By.CAUSE)] == [1]


def test_a_message_that_comes_back_is_read_anew(fleet: Fleet, keeper: Keeper) -> None:
    quarantine = Quarantine(fleet.app)
    mid = keeper.send_and_keep("fleet.healthy", 1)
    (before,) = quarantine.groups()
    quarantine.release([mid])
    keeper.keep(keeper.receive(), cause="exit:3")
    (after,) = quarantine.groups()
    assert (before.cause, before.relapsed) == ("signal:9", 0)
    assert (after.cause, after.relapsed, after.newest) == ("exit:3", 1, mid)


def test_groups_are_counted_without_reading_the_messages(fleet: Fleet, keeper: Keeper) -> None:
    for number in range(5):
        keeper.send_and_keep("fleet.healthy", number % 2, queue=f"q{number % 3}")
    client = keeper.ledger.client
    client.config_resetstat()
    quarantine = Quarantine(fleet.app)
    assert [group.count for group in quarantine.groups()] == [3, 2]
    assert [group.count for group in quarantine.groups(by=By.CAUSE)] == [5]
    assert [group.count for group in quarantine.groups(by=By.CAUSE, where=Filter.parse("queue=q0"))] == [2]
    assert "cmdstat_hmget" not in client.info("commandstats")


def test_a_filter_reads_only_the_records_of_what_matches(fleet: Fleet, keeper: Keeper) -> None:
    quarantine = Quarantine(fleet.app)
    first = keeper.send_and_keep("fleet.healthy", 1)
    for number in range(2, 6):
        keeper.send_and_keep("fleet.healthy", number)
    group = next(group.group for group in quarantine.groups() if group.newest == first)
    client = keeper.ledger.client
    client.config_resetstat()
    assert [record.mid for record in quarantine.list(where=Filter.of_group(group))] == [first]
    assert client.info("commandstats")["cmdstat_hmget"]["calls"] == 1
    assert quarantine.list(where=Filter.parse(f"group={group} crashes>2")) == []
    assert [r.mid for r in quarantine.list(where=Filter.parse(f"group={group} crashes=2"))] == [first]


def test_a_filter_finds_newest_first_and_by_pages_as_without_one(fleet: Fleet, keeper: Keeper) -> None:
    quarantine = Quarantine(fleet.app)
    mids = [keeper.send_and_keep("fleet.healthy", number) for number in range(4)][::-1]
    where = Filter.parse("task=fleet.* age<1h")
    assert [record.mid for record in quarantine.list(where=where, limit=2)] == mids[:2]
    assert [record.mid for record in quarantine.list(where=where, limit=2, offset=2)] == mids[2:]
