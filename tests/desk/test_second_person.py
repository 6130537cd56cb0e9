"""Large acts that two persons ask for: from the command line and from Python (NEW-6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from celery_poison import Quarantine
from celery_poison.errors import SecondPersonNeeded
from celery_poison.ledger.second_person import wishes
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

MANY = 3


@pytest.fixture
def fleet(new_fleet: Callable[..., Fleet], broker_url: str) -> Fleet:
    return new_fleet(broker_url, poison_second_person=MANY)


@pytest.fixture
def mids(keeper: Keeper) -> list[str]:
    return [keeper.send_and_keep("fleet.healthy", n) for n in range(MANY)]


def _asked(fleet: Fleet) -> list[tuple[str, str, str]]:
    entries = fleet.events("act_asked_for", "act_agreed_to")
    return [(entry["event"], entry["actor"], entry["note"]) for entry in entries]


def _released(fleet: Fleet) -> list[str]:
    return [entry["actor"] for entry in fleet.events("released")]


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_NEW_6_a_release_of_everything_is_done_when_a_second_person_types_the_same(
    fleet: Fleet, mids: list[str]
) -> None:
    console, whole = Console(fleet.app), ("release", "--all", "--yes")
    told = console.run(*whole, "--actor", "ann@desk", "--note", "fixed", status=1).stderr
    assert "nothing is done yet" in told and "celery poison release --all --actor NAME" in told
    assert "ann@desk has asked" in told and "nothing matched" not in told
    assert "ann@desk has asked" in console.run(*whole, "--actor", "Ann@laptop", status=1).stderr, (
        "the same one"
    )
    assert not _released(fleet) and len(fleet.quarantine.list()) == MANY

    said = console.run("status").stdout
    assert "what ann@desk asked for needs a second person\n" in said
    (line,) = (line for line in said.splitlines() if line.startswith("asked for"))
    assert (
        "ann@desk asked for release --all (3 messages): fixed; within 60 min another person does it" in line
    )
    assert line.endswith("by the same words: celery poison release --all --actor NAME")
    (wish,) = console.json("status")["asked"]
    assert (wish["actor"], wish["act"], wish["messages"], wish["note"]) == (
        *("ann@desk", "release --all", MANY, "fixed"),
    )
    assert wish["until"] - wish["since"] == 3600

    assert "3 messages released" in console.run(*whole, "--actor", "bob@desk", "--note", "seen").stderr
    assert _released(fleet) == ["bob@desk"] * MANY and not console.json("status")["asked"]
    assert _asked(fleet) == [
        ("act_asked_for", "ann@desk", "release --all (3 messages): fixed"),
        ("act_agreed_to", "bob@desk", "release --all (3 messages): seen"),
    ]
    assert "agreed to by bob@desk" in console.out("journal", "tail")


def test_NEW_6_a_purge_of_everything_wants_two_persons_and_its_copy_is_written_by_the_second(
    fleet: Fleet, mids: list[str], tmp_path: Path
) -> None:
    fleet.quarantine.discard(mids)
    console, copy = Console(fleet.app), tmp_path / "copy.jsonl"
    whole = ("purge", "--all", "--yes", "--export", str(copy))
    console.run(*whole, "--actor", "ann", status=1)
    assert len(fleet.quarantine.list(state="FAIL")) == MANY and not copy.exists()
    console.run(*whole, "--actor", "bob")
    assert not fleet.quarantine.list(state="FAIL") and len(copy.read_text().splitlines()) == MANY


@pytest.mark.parametrize("act", ["release", "schedule", "purge"])
def test_NEW_6_from_python_the_second_person_names_the_same_messages(
    act: str, fleet: Fleet, mids: list[str]
) -> None:
    if act == "purge":
        fleet.quarantine.discard(mids)
    how: dict[str, Any] = {"after": 60} if act == "schedule" else {}
    do = getattr(fleet.quarantine, act)
    with pytest.raises(SecondPersonNeeded, match="wants two persons"):
        do(iter(mids), actor="ann", **how)
    with pytest.raises(SecondPersonNeeded, match="bob has asked"):
        do([*mids, "another"], actor="bob", **how)  # not the same
    assert [outcome.done for outcome in do([*reversed(mids)], actor="bob", **how)] == [True] * MANY


def test_NEW_6_to_another_queue_is_not_the_same_release(fleet: Fleet, mids: list[str]) -> None:
    for actor, to in (("ann", ""), ("bob", "slow")):
        with pytest.raises(SecondPersonNeeded):
            fleet.quarantine.release(mids, actor=actor, to=to, force=True)
    assert not _released(fleet)


def test_NEW_6_fewer_messages_and_other_acts_need_one_person(fleet: Fleet, mids: list[str]) -> None:
    assert fleet.quarantine.release(mids[:2] * 2, actor="ann")[0].done
    assert fleet.quarantine.discard([*mids, "a", "b"], actor="ann")[2].done
    assert not _asked(fleet)


def test_NEW_6_who_asked_too_long_ago_asks_anew(fleet: Fleet, keeper: Keeper, mids: list[str]) -> None:
    with pytest.raises(SecondPersonNeeded, match=r"Within (60 min|1 h)"):
        fleet.quarantine.release(mids, actor="ann")
    client, key = keeper.ledger.client, keeper.ledger.keys.asked
    assert 3_500_000 < client.pttl(key) <= 3_600_000
    (act,) = client.hkeys(key)
    wish = json.loads(client.hget(key, act))
    assert wish["until_ms"] - wish["at_ms"] == 3_600_000
    client.hset(key, act, json.dumps({**wish, "until_ms": wish["at_ms"]}))
    assert not wishes(keeper.ledger)
    with pytest.raises(SecondPersonNeeded, match="bob has asked"):
        fleet.quarantine.release(mids, actor="bob")
    assert not _released(fleet)


def test_NEW_6_of_two_who_agree_at_once_one_does_it(fleet: Fleet, mids: list[str]) -> None:
    with pytest.raises(SecondPersonNeeded):
        fleet.quarantine.release(mids, actor="ann")
    together = Barrier(2)

    def agree(actor: str) -> bool:
        quarantine = Quarantine(fleet.app)
        together.wait()
        try:
            return all(outcome.done for outcome in quarantine.release(mids, actor=actor))
        except SecondPersonNeeded:
            return False

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(agree, ("bob", "carl"))) == [False, True]
    assert len(_released(fleet)) == MANY and len({*_released(fleet)}) == 1
