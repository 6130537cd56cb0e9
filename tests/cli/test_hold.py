"""`celery poison hold add | list | lift` (NEW-27)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison import Quarantine
from celery_poison.desk.owner import default_actor
from celery_poison.desk.releasing import Releases
from celery_poison.extensions.by_value import desk, flower, value_holds
from celery_poison.extensions.by_value.value_holds import ValueHolds
from celery_poison.flower.choosing import NothingChosen
from celery_poison.headers import mid_of
from celery_poison.model import Start
from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper


def test_NEW_27_a_hold_is_added_listed_named_in_status_and_lifted(
    console: Console, fleet: Fleet, keeper: Keeper
) -> None:
    added = console.run(
        "hold", "add", "--where", "n=42", "--task", "fleet.he*", "--note", "broken", "--for", "2h"
    )
    assert added.stdout.startswith(
        "hold 1  messages of 1 task (fleet.healthy) with n=42 go to quarantine, until "
    )
    assert "within a heartbeat" in added.stderr and "poison hold lift 1" in added.stderr
    waits = console.json("hold", "add", "--where", "n=7 and seconds>1", "--wait", "--actor", "ann")
    assert (waits["number"], waits["where"], waits["waits"]) == (2, ["n=7", "seconds>1"], True)
    assert waits["tasks"] == ["fleet.busy", "fleet.healthy"], "no other task has both"

    story = f"hold 1: n=42 of fleet.he*, by {default_actor()}"
    mid = keeper.keep(_sent(fleet, keeper), "held", 0, reason=f"{story}: broken")
    rows = console.json("hold", "list")
    assert [(row["number"], row["quarantined"], row["over"]) for row in rows] == [
        (1, 1, False),
        (2, 0, False),
    ]
    assert "n=7 and seconds>1" in console.out("hold", "list")
    assert [row["number"] for row in console.json("status")["value_holds"]] == [1, 2]
    (line,) = [line for line in console.out("status").splitlines() if line.startswith("value_holds ")]
    assert story in line and "broken (1 in quarantine)" in line
    assert f"Reason: {story}" in console.out("show", mid)
    shown = console.out("show", mid)
    assert "It has arguments that a person holds back." in shown and "1 start" not in shown
    assert "poison hold lift 1 " in shown and "--force" not in shown

    lifted = console.run("hold", "lift", "1", "--note", "repaired")
    assert lifted.stdout == "lifted  hold 1; 1 message released\n"
    assert [raw["headers"]["poison_mid"] for raw in keeper.raw_on_redis()] == [mid]
    assert console.json("hold", "lift", "2")["lifted"]
    assert console.json("hold", "list") == [] and "value_holds" not in console.out("status")
    assert "there is no hold 2" in console.run("hold", "lift", "2", status=1).stderr
    assert f"lifted by {default_actor()}: hold 1: n=42 of fleet.he*: repaired" in console.out(
        "journal", "tail"
    )


def _sent(fleet: Fleet, keeper: Keeper, n: int = 42) -> object:
    fleet.send("healthy", n)
    return keeper.receive()


@pytest.mark.parametrize(
    ("typed", "status", "said"),
    [
        (["n"], 2, "'n' is no condition: write argument=value"),
        (["n==1"], 2, "'n==1' compares by '=='"),
        (["secods=1"], 1, "has an argument 'secods': did you mean seconds?"),
        (["n=1", "--task", "fleet.healty"], 1, "no task 'fleet.healty': did you mean fleet.healthy?"),
        (["argument=1", "--task", "fleet.healthy"], 1, "fleet.healthy has no argument 'argument'"),
        (["n=1 and argument=1"], 1, "no guarded task has all of these arguments: n=1 and argument=1"),
    ],
)
def test_NEW_27_what_would_catch_nothing_is_refused_in_one_sentence(
    console: Console, typed: list[str], status: int, said: str
) -> None:
    refused = console.run("hold", "add", "--where", *typed, status=status).stderr
    assert said in refused and len(refused.splitlines()) == 1
    if status == 1:
        console.run("hold", "add", "--where", *typed, "--force")


def test_NEW_27_a_worker_that_only_observes_holds_nothing_and_there_are_not_too_many(
    console: Console,
) -> None:
    Quarantine(console.app).hold("n=1", seconds=0.001)
    for _ in range(20):  # the one that is over does not count
        console.run("hold", "add", "--where", "n=1")
    assert (
        "there are 20 holds by value already" in console.run("hold", "add", "--where", "n=1", status=2).stderr
    )
    plugin_of(console.app).override({"poison_observe_only": True})
    assert "workers hold nothing back" in console.run("hold", "add", "--where", "n=1", status=2).stderr


def test_NEW_27_a_lift_of_many_waits_for_a_second_person(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    fleet = new_fleet(redis_url, poison_second_person=2)
    console, keeper = Console(fleet.app), Keeper(fleet.app)
    console.run("hold", "add", "--where", "n=42")
    for _ in range(2):
        keeper.keep(_sent(fleet, keeper), "held", 0, reason="hold 1: n=42, by ann")
    asked = console.run("hold", "lift", "1", "--actor", "ann", status=1).stderr
    assert "nothing is done yet" in asked and "celery poison hold lift 1 --actor NAME" in asked
    assert console.json("hold", "list") and len(fleet.quarantine.list()) == 2, "it stays in force"
    assert console.json("hold", "lift", "1", "--actor", "bob")["lifted"]
    assert not fleet.quarantine.list() and not console.json("hold", "list")
    keeper.close()


def test_NEW_27_a_hold_stays_in_force_until_a_pass_finds_nothing_new_and_all_is_released(
    new_fleet: Callable[..., Fleet], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = new_fleet(redis_url, poison_second_person=2)
    console, keeper = Console(fleet.app), Keeper(fleet.app)
    release, coming = Releases.release, [2, 1]

    def released(self: Releases, *args: Any, **how: Any) -> Any:
        assert fleet.quarantine.value_holds(), "it is in force while anything is released"
        outcomes = release(self, *args, **how)
        for _ in range(coming.pop(0) if coming else 0):
            keep()
        return outcomes

    def keep() -> str:
        keeper.empty()  # what was released already
        return keeper.keep(_sent(fleet, keeper), "held", 0, reason="hold 1: n=42, by ann")

    console.run("hold", "add", "--where", "n=42")
    for _ in range(2):
        keep()
    console.run("hold", "lift", "1", "--actor", "ann", status=1)
    monkeypatch.setattr(Releases, "release", released)
    fleet.app.send_task("shop.unknown", (42,))
    unknown = keeper.keep(keeper.receive(), "held", 0, reason="hold 1: n=42, by ann")
    refused = console.run("hold", "lift", "1", "--actor", "bob", status=1).stdout
    assert "hold 1 stays in force; 5 messages released, 1 refused" in refused
    assert [record.mid for record in fleet.quarantine.list()] == [unknown] and not coming
    fleet.quarantine.discard([unknown])
    assert console.run("hold", "lift", "1").stdout.startswith("lifted  hold 1; 0 messages released")
    keep()  # a worker that had not heard of it
    said = console.out("status")
    assert "hold 1 has ended, but 1 message of it in quarantine" in said and "poison hold lift 1" in said
    monkeypatch.undo()
    assert console.json("hold", "lift", "1")["lifted"] and not fleet.quarantine.list()
    keeper.close()


def test_NEW_27_a_hold_that_is_over_and_keeps_nothing_asks_for_nothing_and_goes_away(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.run("hold", "add", "--where", "n=42", "--wait", "--for", "1s")
    wait_until(lambda: console.json("hold", "list")[0]["over"], what="its time is over")
    assert "lift it" not in console.out("status") and "value_holds" not in console.out("status")
    monkeypatch.setattr(value_holds, "KEPT_MS", 0)
    console.run("hold", "add", "--where", "n=43")
    assert [row["number"] for row in console.json("hold", "list")] == [2]


def test_NEW_27_show_next_and_list_lead_to_what_waits_for_a_hold(
    console: Console, fleet: Fleet, keeper: Keeper
) -> None:
    made = Quarantine(console.app).hold("n=42", wait=True, actor="ann", note="broken")
    message = _sent(fleet, keeper)
    mid, start = mid_of(message.headers), Start.of("b00t.1", "w1@test/b00t", "i1", "fleet.healthy", queue="q")
    key = ValueHolds(keeper.ledger).key_of(made)
    assert keeper.ledger.parking.park(mid, b"", start, number=0, parcel=b"", awaits=key)
    message.ack()
    listed = console.run("list")
    assert "no messages in quarantine; 1 wait in the ledger" in listed.stdout + listed.stderr
    assert "list --state TBDL" in listed.stdout + listed.stderr
    assert "i1" in console.out("list", "--state", "TBDL")
    shown = console.out("show", "i1")
    assert "Waits in the ledger." in shown and "parked in the ledger" in shown and "1 start" not in shown
    assert "poison hold list" in shown and "poison list --state TBDL" in shown
    seen = console.out("status")
    assert (
        "hold 1: n=42, by ann: broken (1 waiting)" in seen
        and "1 message in the ledger; see `list --state TBDL`" in seen
    )
    lifted = console.run("hold", "lift", "1")
    assert lifted.stdout == "lifted  hold 1; 1 message that waited may go on\n"


def test_NEW_27_what_another_hold_may_catch_stays_and_no_look_counts_without_end(
    console: Console, fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        console.run("hold", "add", "--where", "n=42")
    packed = fleet.app.tasks["fleet.healthy"].apply_async((42,), serializer="pickle")
    keeper.keep(keeper.receive(), "held", 0, reason="hold 1: n=42, by ann")
    fleet.app.send_task("shop.unknown", (42,))
    keeper.keep(keeper.receive(), "held", 0, reason="hold 1: n=42, by ann")
    keeper.keep(_sent(fleet, keeper, 7), "held", 0, reason="hold 1: n=42, by ann")
    monkeypatch.setattr(desk, "COUNTED", 1)
    assert "(over 1 in quarantine)" in console.out("status")
    lifted = console.json("hold", "lift", "1")
    assert (lifted["lifted"], lifted["kept"], len(lifted["outcomes"])) == (True, 2, 1)
    assert packed.id in {record.id for record in fleet.quarantine.list()}
    monkeypatch.setattr(flower, "MOST", -1)
    with pytest.raises(NothingChosen, match="poison hold lift 2"):
        flower.PART.holds["value"].end(fleet.app, "2", "")


def test_NEW_27_status_proposes_a_hold_by_the_value_that_convicted_messages_share(
    console: Console, fleet: Fleet, keeper: Keeper
) -> None:
    for number in range(3):
        keeper.send_and_keep("fleet.busy", 42, float(number))
    keeper.send_and_keep("fleet.busy", 7, 1.0)
    said = console.out("status")
    assert "3 convicted messages share n=42, and no other in quarantine does" in said
    assert "poison hold add --where n=42 --note '...'" in said
    assert console.json("status")["hold_proposed"] == {"where": ["n=42"], "messages": 3}
    plugin_of(fleet.app).override({"poison_redact": ["n"]})
    assert "n=42" not in json.dumps(console.json("status")) and "n=42" not in console.out("status")
    plugin_of(fleet.app).override({"poison_redact": []})
    console.run("hold", "add", "--where", "n=42")
    assert console.json("status").get("hold_proposed") is None
