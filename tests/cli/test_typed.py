"""What is told to be typed can be typed; what was typed wrong is answered with the cure."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from subprocess import run

import pytest

from celery_poison.basics.text import argument
from celery_poison.desk.search import group_id
from celery_poison.desk.survey import overview
from celery_poison.extensions.notify.notifier import Wording
from tests import PATIENCE
from tests.apps.harness import ROOT, Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

#: Ids that a publisher may choose.
HOSTILE = ["$(touch owned)", "--all", "-n", "a b;c", "`id`'\"", "--yes --all"]


@pytest.mark.parametrize("id", HOSTILE)
def test_whatever_an_id_is_the_commands_of_show_reach_this_message_and_nothing_else(
    id: str, console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, task_id=id)
    other = keeper.send_and_keep("fleet.healthy", 2)
    for line in console.out("show", mid).splitlines():
        if line.strip().startswith("celery -A "):
            typed = line.strip().partition("  ")[0]
            words = shlex.split(typed)[4:]
            if words == ["pause", "--task", "fleet.healthy"]:
                continue  # of all of its task: the other has died, too
            assert id.startswith(words[-1]) and not (words[-1].startswith("-") and "--" not in words[:-1]), (
                typed
            )
    seen = overview(fleet.app)
    (typed,) = [typed for typed in seen.next if " show " in typed]
    words = shlex.split(typed)
    assert console.run(*words[4:]).output.count(id) >= 1, "status names a command that can be typed"
    (group,) = fleet.quarantine.groups(by="cause")
    told = Wording("shop", "poison").group(group, 0, fleet.quarantine.get(mid))
    assert shlex.split(told.command)[4:] == shlex.split(f"show {argument(id[:20])}")
    console.run("discard", *shlex.split(argument(id)))
    assert [record.mid for record in fleet.quarantine.list()] == [other]


def test_too_few_characters_of_an_id_are_answered_with_how_many_it_takes(
    console: Console, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert "type at least 4 characters" in console.run("show", mid[:3], status=1).stderr
    console.run("show", mid[:4])


@pytest.mark.parametrize("typed", ["QUAR", "DLVD", ""])
def test_a_state_that_there_is_not_is_answered_with_those_that_there_are(
    typed: str, console: Console
) -> None:
    told = console.run("list", "--state", typed, status=2).stderr
    assert "NDLV (in quarantine), FAIL (given up), DLNG (running), TBDL (waiting" in " ".join(told.split())


def test_states_may_be_typed_in_lower_case(console: Console, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    assert len(console.json("list", "--state", "ndlv")) == 1


def test_a_command_without_an_app_is_answered_with_the_way_to_name_one(entry_points: Path) -> None:
    path = os.pathsep.join([str(entry_points), str(ROOT)])
    done = run(
        [sys.executable, "-m", "celery", "poison", "status"],
        env={name: value for name, value in os.environ.items() if name != "APP"} | {"PYTHONPATH": path},
        cwd=entry_points,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    reason = "celery poison: no app was named: write celery -A proj poison"
    assert done.returncode == 2 and done.stderr.startswith(reason), done


def test_NEW_10_groups_by_cause_tell_exceptions_apart(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    for number, raised in enumerate(("KeyError", "KeyError", "ValueError")):
        fleet.app.tasks["fleet.healthy"].apply_async((number,))
        evidence = json.dumps({"exception": raised})
        keeper.keep(keeper.receive(), "failure", 0, fingerprint=raised.lower(), evidence=evidence)
    keeper.send_and_keep("fleet.healthy", 9)
    rows = [row.split() for row in console.out("groups").splitlines()[1:]]
    assert {(*row[:2], row[3]) for row in rows} >= {
        ("failure:", "KeyError", "2"),
        ("failure:", "ValueError", "1"),
    }
    assert len(rows) == 3
    groups = {group.fingerprint: group.group for group in fleet.quarantine.groups(by="cause")}
    assert len(console.json("release", "--group", groups["keyerror"], "--yes")) == 2
    assert [
        group.count for group in fleet.quarantine.groups(by="cause", where="cause=failure queue=celery")
    ] == [1]
    assert group_id("fleet.healthy", "failure") not in groups.values()
