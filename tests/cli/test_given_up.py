"""Restore, purge and edit from the command line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_poison.cli import edit
from celery_poison.testing import RedisServer
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

DAY = 86_400_000


@pytest.fixture
def given_up(keeper: Keeper, fleet: Fleet) -> dict[str, str]:
    """One message for each way to give up; way -> mid."""
    mids = {
        way: keeper.send_and_keep("fleet.healthy", n)
        for n, way in enumerate(("failed", "discarded", "edited"))
    }
    fleet.quarantine.fail([mids["failed"]])
    fleet.quarantine.discard([mids["discarded"]])
    fleet.quarantine.edit(mids["edited"], args=[9])
    return mids


def _states(fleet: Fleet, state: str) -> set[str]:
    return {record.mid for record in fleet.quarantine.list(state=state)}


# --- restore ---------------------------------------------------------------------------------------


def test_what_a_filter_or_all_restores_was_discarded_and_the_others_must_be_named(
    given_up: dict[str, str], console: Console, fleet: Fleet
) -> None:
    assert "1 message would be restored" in console.run("restore", "--all", "--dry-run").stderr
    (outcome,) = console.json("restore", "--all", "--force", "--note", "back", "--actor", "ann")
    assert (outcome["mid"], outcome["done"]) == (given_up["discarded"], True)
    for way in ("failed", "edited"):
        assert f"it was {way}" in console.run("restore", given_up[way], status=1).stderr
        assert "restored  " in console.out("restore", given_up[way], "--force")
    assert _states(fleet, "NDLV") == {*given_up.values()}
    assert "nothing matched" in console.run("restore", "--filter", "task=*", status=1).stderr


def test_show_says_how_a_discard_is_taken_back(given_up: dict[str, str], console: Console) -> None:
    assert "poison restore" in console.out("show", given_up["discarded"])
    assert "poison restore" not in console.out("show", given_up["failed"])


# --- purge -----------------------------------------------------------------------------------------


def test_purge_wants_a_copy_or_the_word_that_there_is_to_be_none(
    given_up: dict[str, str], console: Console, fleet: Fleet, tmp_path: Path
) -> None:
    file = str(tmp_path / "copies.jsonl")
    for arguments in (("--all", "--yes"), ("--all", "--yes", "--no-copy", "--export", file)):
        assert "--export FILE" in console.run("purge", *arguments, status=2).stderr
    assert "3 messages match: add --yes" in console.run("purge", "--all", "--no-copy", status=2).stderr
    assert _states(fleet, "FAIL") == {*given_up.values()}
    id = fleet.quarantine.get(given_up["failed"]).id
    assert "3 messages purged" in console.run("purge", "--all", "--no-copy", "--yes").stderr
    assert "gone for good: it was purged" in console.out("show", id)
    assert not _states(fleet, "FAIL")


def test_the_copies_that_purge_writes_have_everything_and_are_their_owner_s_alone(
    given_up: dict[str, str], console: Console, fleet: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "copies.jsonl"
    shown = {mid: console.json("show", mid) for mid in given_up.values()}
    console.run("purge", "--all", "--export", str(file), status=2)
    assert not file.exists(), "nothing was written"
    console.run("purge", "--all", "--export", str(file), "--yes")
    copies = {copy["mid"]: copy for copy in map(json.loads, file.read_text().splitlines())}
    for each in shown.values():  # without what became of a changed copy
        each |= {"history": [], "story": each["story"].partition(" Of the copy:")[0]}
    assert copies == shown
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert "File exists" in console.run("purge", "--all", "--export", str(file), status=2).stderr


def test_purge_by_age_goes_by_the_moment_at_which_a_message_was_given_up(
    given_up: dict[str, str], console: Console, fleet: Fleet, keeper: Keeper
) -> None:
    kept = keeper.send_and_keep("fleet.healthy", 1)
    client, keys = keeper.ledger.client, keeper.ledger.keys
    old = given_up["failed"]
    now = fleet.quarantine.queries.now_ms()
    client.hset(keys.message(old), "last_seen", now - 31 * DAY)
    client.hset(keys.message(kept), "last_seen", now - 31 * DAY)
    assert [m["mid"] for m in console.json("purge", "--older-than", "30d", "--dry-run")] == [old]
    assert "does not go with ids" in console.run("purge", old, "--older-than", "30d", status=2).stderr
    assert "write a number with s, m, h or d" in console.run("purge", "--older-than", "-1d", status=2).stderr
    console.run("purge", "--filter", "task=fleet.*", "--older-than", "30d", "--no-copy")
    assert _states(fleet, "FAIL") == {given_up["discarded"], given_up["edited"]}
    assert "discard or fail it first" in console.run("purge", kept, "--no-copy", status=1).stderr


# --- edit ------------------------------------------------------------------------------------------


def test_NEW_6_an_edit_says_what_its_copy_is(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    told = console.run("edit", mid, "--args", "[2]", "--dry-run")
    assert told.stdout == "n: 1 -> 2\n" and "1 message would be edited" in told.stderr
    by_default = console.run("edit", mid, "--set", "seconds=9", "--dry-run")
    assert by_default.stdout == "seconds: 0.02 (default) -> 9\n"
    preview = console.json("edit", mid, "--args", "[2]", "--dry-run")
    assert preview == {"mid": mid, "id": preview["id"], "args": [2], "kwargs": {}, "queue": "celery"}
    assert fleet.quarantine.get(mid).state == "NDLV" and not keeper.raw_on_redis()
    (outcome,) = console.json("edit", mid, "--args", "[2]", "--note", "two")
    assert outcome["done"] and fleet.quarantine.get(mid).edited_to == outcome["copy"]
    assert "its changed copy is" in console.run("edit", mid, "--args", "[2]", status=1).stderr


def test_a_value_of_another_kind_is_refused_unless_it_is_meant(console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", [{"id": 1}, {"id": 2}])
    refused = console.run("edit", mid, "--set", "n=x", status=1).stderr
    assert 'n is an array of 2 items, and "x" is text: write JSON that is an array, or --force' in refused
    assert console.json("edit", mid, "--set", "n=[]", "--dry-run")["args"] == [[]]
    assert console.json("edit", mid, "--set", "n=x", "--dry-run", "--force")["args"] == ["x"]
    assert "edit --set n=VALUE" in console.out("show", mid), "the name of an argument"


def test_a_value_of_another_kind_is_refused_also_where_the_task_is_not_loaded_yet(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    """As with `include` and `autodiscover_tasks`: only a worker loads these modules by itself."""

    def late(pages: list[int]) -> list[int]:
        return pages

    def load() -> None:
        fleet.app.task(late, name="late.task", shared=False)

    fleet.app.loader.import_default_modules = load
    fleet.app.send_task("late.task", ([1, 2],))
    mid = keeper.keep(keeper.receive())
    assert "pages is an array of 2 items" in console.run("edit", mid, "--set", "pages=x", status=1).stderr


def test_an_edit_that_is_held_waits_for_a_release(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, kwargs={"seconds": 0.5})
    result = console.run("edit", mid, "--set", "seconds=1", "--hold")
    (copy,) = fleet.quarantine.list()
    assert "its changed copy, of the same task id, waits in quarantine" in result.stdout
    assert f"poison show {copy.id[:8]}" in result.stderr
    assert copy.arguments == "1, seconds=1"
    assert console.json("release", copy.mid)[0]["done"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--args", "{}"), "give an array"),
        (("--kwargs", "[]"), "give an object"),
        (("--args", "[1"), "this is no JSON"),
        (("--set", "page"), "write NAME=VALUE"),
        ((), "say what to change"),
    ],
)
def test_what_cannot_be_an_edit_is_wrong_usage(
    arguments: tuple[str, ...], said: str, console: Console, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert said in console.run("edit", mid, *arguments, status=2).stderr


def test_a_pickled_message_is_refused_and_the_exit_status_is_1(console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, serializer="pickle")
    assert "never decoded outside a worker" in console.run("edit", mid, "--args", "[2]", status=1).stderr


def _editor(path: Path, monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    """Make $EDITOR a program that runs one of these scripts after the other."""
    for number, script in enumerate(scripts):
        (path / str(number)).write_text(script)
    program = path / "editor"
    program.write_text(f"#!/bin/sh\ncd {path}\nn=$(ls | sort | head -1)\n. ./$n\nrm $n\n")
    program.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(program))
    monkeypatch.setattr(edit, "_has_terminal", lambda: True)


def test_without_options_the_call_is_changed_in_an_editor_which_opens_again_on_what_is_no_JSON(
    console: Console, keeper: Keeper, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 41)
    _editor(tmp_path, monkeypatch, 'sed -i s/41/41,/ "$1"', 'sed -i s/41,/42/ "$1"')
    result = console.run("edit", mid, input="y\n")
    assert "this cannot be read" in result.stderr
    (record,) = fleet.quarantine.list(candidates=True)
    (raw,) = keeper.raw_on_redis()
    assert raw["headers"]["argsrepr"] == "(42,)" and record.mid == fleet.quarantine.get(mid).edited_to


def test_an_editor_that_saves_nothing_changes_nothing(
    console: Console, keeper: Keeper, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 41)
    _editor(tmp_path, monkeypatch, "true")
    assert "nothing was changed" in console.run("edit", mid, status=2).stderr
    assert fleet.quarantine.get(mid).state == "NDLV"


# --- Redis -----------------------------------------------------------------------------------------

ACTS = {"restore": (), "purge": ("--no-copy",), "edit": ("--args", "[2]")}


@pytest.mark.parametrize("verb", ACTS)
def test_an_unreachable_Redis_is_exit_status_3(verb: str, new_fleet: Any) -> None:
    fleet = new_fleet("redis://:s3cret@127.0.0.1:1/0")
    result = Console(fleet.app).run(verb, "id", *ACTS[verb], status=3)
    assert "Redis is not reachable" in result.stderr and "s3cret" not in result.stderr


def test_a_Redis_that_is_full_refuses_an_edit_and_purge_makes_room(
    new_fleet: Any, new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    fleet = new_fleet(server.url())
    console, keeper = Console(fleet.app), Keeper(fleet.app)
    kept, given_up = (keeper.send_and_keep("fleet.healthy", n) for n in range(2))
    keeper.close()
    fleet.quarantine.discard([given_up])
    server.client().config_set("maxmemory", 1)
    assert "out of memory" in console.run("edit", kept, "--args", "[2]", status=3).stderr
    assert fleet.quarantine.get(kept).state == "NDLV"
    console.run("purge", given_up, "--no-copy")
    assert not fleet.quarantine.list(state="FAIL")
