"""`celery poison groups`, and acts on one group."""

from __future__ import annotations

from tests.cli.conftest import Console
from tests.desk.keeping import Keeper


def test_groups_are_counted_by_task_cause_and_fingerprint(console: Console, keeper: Keeper) -> None:
    for _ in range(2):
        keeper.send_and_keep("fleet.healthy", 1)
    keeper.send_and_keep("fleet.healthy", 2)
    newest = keeper.send_and_keep("fleet.kill_child", cause="exit:7")
    groups = console.json("groups", "--by", "fingerprint")
    assert [(group["task"], group["cause"], group["count"]) for group in groups] == [
        ("fleet.healthy", "signal:9", 2),
        ("fleet.kill_child", "exit:7", 1),
        ("fleet.healthy", "signal:9", 1),
    ]
    assert len({group["fingerprint"] for group in groups}) == 3
    assert groups[1]["newest"] == newest
    assert groups[1]["first_seen"] <= groups[1]["last_seen"]


def test_groups_by_cause_count_all_arguments_together(console: Console, keeper: Keeper) -> None:
    for number in range(3):
        keeper.send_and_keep("fleet.healthy", number)
    (group,) = console.json("groups")
    assert (group["count"], group["fingerprint"]) == (3, "")
    heading, row = console.out("groups").splitlines()
    assert heading.split() == ["CAUSE", "TASK", "MESSAGES", "RELAPSED", "OLDEST", "NEWEST", "GROUP"]
    assert row.split()[:4] == ["SIGKILL", "fleet.healthy", "3", "0"]
    assert row.split()[-1] == group["group"] and len(heading) <= 80
    assert "FINGERPRINT" in console.out("groups", "--by", "fingerprint")


def test_a_released_message_that_died_again_counts_as_relapsed(console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert console.json("groups")[0]["relapsed"] == 0
    console.run("release", mid)
    keeper.keep(keeper.receive())
    keeper.send_and_keep("fleet.healthy", 1)
    (group,) = console.json("groups")
    assert (group["count"], group["relapsed"]) == (2, 1)


def test_an_act_on_a_group_touches_it_and_nothing_else(console: Console, keeper: Keeper) -> None:
    mids = {keeper.send_and_keep("fleet.healthy", 1) for _ in range(2)}
    other = keeper.send_and_keep("fleet.healthy", 2)
    group = console.json("groups", "--by", "fingerprint")[0]["group"]
    assert {m["mid"] for m in console.json("discard", "--group", group, "--dry-run")} == mids
    console.run("discard", "--group", group, status=2)  # more than one: it asks first
    console.run("discard", "--group", group, "--yes")
    assert [message["mid"] for message in console.json("list")] == [other]


def test_both_kinds_of_groups_are_filters_too(console: Console, keeper: Keeper) -> None:
    first = keeper.send_and_keep("fleet.healthy", 1)
    second = keeper.send_and_keep("fleet.healthy", 2)
    by_fingerprint = console.json("groups", "--by", "fingerprint")
    fine = next(group["group"] for group in by_fingerprint if group["newest"] == first)
    (coarse,) = console.json("groups")
    assert [m["mid"] for m in console.json("list", "--filter", f"group={fine}")] == [first]
    assert [m["mid"] for m in console.json("list", "--filter", f"group!={fine}")] == [second]
    assert len(console.json("list", "--filter", f"group={coarse['group']}")) == 2
    assert [group["count"] for group in console.json("groups", "--filter", f"group={fine}")] == [1]


def test_a_group_that_is_unknown_matches_nothing_and_no_pattern_is_one(
    console: Console, keeper: Keeper
) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    for group in ("0123456789ab", "*"):
        assert "nothing matched" in console.run("release", "--group", group, "--yes", status=1).stderr
    console.run("list", "--filter", "group>1", status=2)


def test_no_groups_are_no_error(console: Console) -> None:
    assert console.json("groups") == []
    assert "no worker has used this ledger" in console.run("groups").stderr
