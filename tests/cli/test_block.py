"""`celery poison block` and `unblock`: what may not run, by hand (NEW-3)."""

from __future__ import annotations

import pytest

from celery_poison.desk.owner import default_actor
from celery_poison.ledger import signature
from celery_poison.plugin import plugin_of
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

TASK = "fleet.kill_child"


def test_NEW_3_a_task_is_blocked_listed_and_unblocked(console: Console, fleet: Fleet) -> None:
    assert "nothing is blocked" in console.run("block", "--list").stderr
    rule = console.json("block", "--task", TASK, "--expires", "2h", "--note", "supplier is down")
    assert (rule["kind"], rule["name"], rule["actor"]) == ("task", TASK, default_actor())
    assert round(rule["until"] - rule["since"]) == 7200
    listed = console.run("block", "--list")
    assert listed.stderr.startswith("1 rule in force")
    assert listed.stderr.endswith(f"next: celery -A proj poison unblock --task {TASK}\n")
    (row,) = listed.stdout.splitlines()[1:]
    assert row.startswith(f"task  {TASK}  {TASK}") and row.endswith(f"{default_actor()}: supplier is down")
    assert "blocked     1 rule\n" in console.out("status")
    assert console.json("status")["blocked"] == 1
    told = console.run("unblock", "--task", TASK, "--actor", "ann", "--note", "is back")
    assert told.stdout == f"unblocked  task {TASK}\n"
    assert console.json("block", "--list")["rules"] == []
    notes = [(entry["actor"], entry["note"]) for entry in fleet.quarantine.queries.journal()]
    assert notes == [
        (default_actor(), f"task {TASK} for 7200 s: supplier is down"),
        ("ann", f"task {TASK}: is back"),
    ]
    assert f"unblocked by ann: task {TASK}: is back" in console.out("journal", "tail")


def test_NEW_3_what_is_like_a_message_in_quarantine_is_blocked(console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep(TASK, 7)
    fingerprint = console.json("show", mid)["fingerprint"]
    assert console.out("block", "--like", mid).startswith(
        f"blocked  fingerprint {fingerprint} of {TASK}, until a person unblocks it"
    )
    (rule,) = console.json("block", "--list")["rules"]
    assert (rule["name"], rule["task"]) == (fingerprint, TASK)
    assert "  until unblocked  " in console.out("block", "--list")
    console.run("unblock", "--like", mid[:8])
    console.run("block", "--fingerprint", fingerprint, "--task", TASK)
    console.run("unblock", "--fingerprint", fingerprint)
    assert console.json("block", "--list")["rules"] == []


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("block",), "say what: --queue NAME, --task NAME"),
        (("unblock",), "say what: --queue NAME, --task NAME"),
        (("block", "--like", "x", "--task", TASK), "say what: --queue NAME, --task NAME"),
        (("block", "--task", TASK, "--expires", "soon"), "write a number with s, m, h or d"),
        (("block", "--task", TASK, "--expires", "0s"), "write a number with s, m, h or d"),
        (("block", "--fingerprint", "7"), "'7' is no fingerprint"),
    ],
)
def test_wrong_usage_names_the_cure(typed: tuple[str, ...], told: str, console: Console) -> None:
    assert told in console.run(*typed, status=2).stderr
    assert console.json("block", "--list")["version"] == 0


def test_what_matches_nothing_is_exit_status_1(console: Console, keeper: Keeper) -> None:
    refused = console.run("block", "--task", "fleet.kill_chil", status=1)
    assert f"guards no task 'fleet.kill_chil': did you mean {TASK}?" in refused.stderr
    console.run("block", "--task", "elsewhere", "--force")
    console.run("block", "--like", "nobody", status=1)
    assert f"task {TASK} is not blocked" in console.run("unblock", "--task", TASK, status=1).stderr


def test_garbage_on_the_list_is_told(console: Console, fleet: Fleet) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    ledger.client.hset(ledger.keys.blocks, "task:x", "{")
    assert "task:x is ignored: it is no rule" in console.run("block", "--list").stderr


def test_the_ledger_of_another_app_is_not_touched(console: Console, fleet: Fleet) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    signature.enroll(ledger.client, ledger.keys, app="somebody", broker="else")
    for typed in (("block", "--list"), ("block", "--task", TASK), ("unblock", "--task", TASK)):
        assert "belongs to" in console.run(*typed, status=2).stderr
    assert not ledger.client.exists(ledger.keys.blocks)


def test_without_redis_the_exit_status_is_3(fleet: Fleet) -> None:
    app = build_app(fleet.environ() | {"POISON_REDIS_URL": "redis://127.0.0.1:1/0"})
    for typed in (("block", "--list"), ("block", "--task", TASK), ("unblock", "--task", TASK)):
        assert "Redis is not reachable" in Console(app).run(*typed, status=3).stderr


def test_help_has_examples(console: Console) -> None:
    for verb in ("block", "unblock"):
        assert f"celery -A proj poison {verb} --" in console.out(verb, "--help")
