"""`celery poison policy`: what tasks tolerate, seen and changed (EMS-9)."""

from __future__ import annotations

import pytest

from celery_poison.desk.owner import default_actor
from celery_poison.ledger import signature
from celery_poison.plugin import plugin_of
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.cli.conftest import Console

TASK = "fleet.kill_child"


def _row(console: Console, task: str = TASK) -> list[str]:
    (row,) = [line for line in console.out("policy", "get").splitlines() if line.startswith(task + " ")]
    return row.split(maxsplit=1)[1].split("  ")


def test_EMS_9_get_shows_where_each_value_comes_from(console: Console, fleet: Fleet) -> None:
    fleet.app.tasks[TASK].max_failures = 7
    assert [cell.strip() for cell in _row(console) if cell] == [
        "2 (setting)",
        "7 (code)",
        *2 * ["none (setting)"],
    ]
    assert "nothing was ever overridden" in console.run("policy", "get").stderr
    console.run("policy", "set", TASK, "max_crashes=3")
    console.run("policy", "set", "*", "max_crashes=9", "max_payload_bytes=1048576")
    assert [cell.strip() for cell in _row(console) if cell] == [
        "3 (override)",
        "7 (code)",
        "1048576 (override *)",
        "none (setting)",
    ]
    sheet = console.json("policy", "get", TASK)
    assert sheet["tasks"] == [
        {
            "task": TASK,
            "values": {
                "max_crashes": 3,
                "max_failures": 7,
                "max_payload_bytes": 1048576,
                "block_fingerprint_after": None,
            },
            "origins": {
                "max_crashes": "override",
                "max_failures": "code",
                "max_payload_bytes": "override *",
                "block_fingerprint_after": "setting",
            },
            "guarded": True,
        }
    ]
    told = console.run("policy", "get", TASK).stderr.splitlines()
    assert told == [
        "1 policy, 1 with an override",
        f"version {sheet['version']}",
        "next: celery -A proj poison policy set --help",
    ]
    assert _row(console, "*")[0].startswith("9 (override)")


def test_EMS_9_set_and_unset_tell_what_holds_and_are_journalled(console: Console, fleet: Fleet) -> None:
    first = console.json("policy", "set", TASK, "max_crashes=3", "max_payload_bytes=none", "--note", "slow")
    assert first == {
        "version": first["version"],
        "task": TASK,
        "options": {"max_crashes": 3, "max_payload_bytes": None},
    }
    assert console.out("policy", "unset", TASK, "max_crashes") == f"{TASK}  max_payload_bytes=none\n"
    second = console.run("policy", "unset", TASK, "--actor", "ann")
    assert second.stdout == f"{TASK}  not overridden any more\n"
    told = [(entry["actor"], entry["note"]) for entry in fleet.quarantine.queries.journal()]
    assert told == [
        (default_actor(), "set max_crashes=3 max_payload_bytes=none: slow"),
        (default_actor(), "unset max_crashes"),
        ("ann", "unset everything"),
    ]
    assert f"policy of {TASK} changed by ann: unset everything" in console.out("journal", "tail")


def test_EMS_9_two_people_do_not_overwrite_each_other(console: Console) -> None:
    read = console.json("policy", "get")["version"]
    console.run("policy", "set", TASK, "max_crashes=3", "--if-version", str(read))
    refused = console.run("policy", "set", TASK, "max_crashes=4", "--if-version", str(read), status=1)
    assert "a policy was changed meanwhile" in refused.stderr
    console.run("policy", "unset", TASK, "--if-version", str(read), status=1)
    assert console.json("policy", "get", TASK)["tasks"][0]["values"]["max_crashes"] == 3


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("max_crash=3",), "unknown option max_crash: did you mean max_crashes?"),
        (("max_crashes=0",), "max_crashes=0 is impossible: use a whole number of at least 1"),
        (("max_crashes=none",), "max_crashes=None is impossible"),
        (("max_crashes=two",), "max_crashes='two' is impossible"),
        (("fingerprint=len",), "unknown option fingerprint"),
        (("max_crashes",), "is not OPTION=VALUE"),
        ((), "say what: OPTION=VALUE"),
        (("max_crashes=3", "--if-version", "x"), "Invalid value for '--if-version'"),
    ],
)
def test_wrong_usage_names_the_cure_and_changes_nothing(
    typed: tuple[str, ...], told: str, console: Console
) -> None:
    assert told in console.run("policy", "set", TASK, *typed, status=2).stderr
    assert console.json("policy", "get")["version"] == 0


def test_what_matches_nothing_is_exit_status_1(console: Console) -> None:
    refused = console.run("policy", "set", "fleet.kill_chil", "max_crashes=3", status=1)
    assert f"guards no task 'fleet.kill_chil': did you mean {TASK}?" in refused.stderr
    console.run("policy", "unset", TASK, status=1)
    console.run("policy", "set", TASK, "max_failures=3")
    assert (
        "max_crashes is not overridden"
        in console.run("policy", "unset", TASK, "max_crashes", status=1).stderr
    )
    assert "guards no task 'nowhere'" in console.run("policy", "get", "nowhere", status=1).stderr
    console.run("policy", "set", "elsewhere", "max_crashes=3", "--force")
    assert "not a guarded task of this app" in console.out("policy", "get", "elsewhere")


def test_the_ledger_of_another_app_is_not_touched(console: Console, fleet: Fleet) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    signature.enroll(ledger.client, ledger.keys, app="somebody", broker="else")
    for typed in (("get",), ("set", TASK, "max_crashes=3"), ("unset", TASK)):
        assert "belongs to" in console.run("policy", *typed, status=2).stderr
    assert not ledger.client.exists(ledger.keys.policy)


def test_without_redis_the_exit_status_is_3(fleet: Fleet) -> None:
    app = build_app(fleet.environ() | {"POISON_REDIS_URL": "redis://127.0.0.1:1/0"})
    for typed in (("get",), ("set", TASK, "max_crashes=3"), ("unset", TASK)):
        assert "Redis is not reachable" in Console(app).run("policy", *typed, status=3).stderr


def test_help_has_examples(console: Console) -> None:
    for verb in ((), ("get",), ("set",), ("unset",)):
        assert "celery -A proj poison policy" in console.out("policy", *verb, "--help")


def test_WAS_3_a_queue_has_a_policy_of_its_own(console: Console, fleet: Fleet) -> None:
    plugin_of(fleet.app).override({"poison_queues": {"slow": {"max_crashes": 4, "keep_failures": True}}})
    changed = console.json("policy", "set", "--queue", "celery", "max_failures=3", "max_crashes=1")
    assert (changed["task"], changed["options"]) == ("queue:celery", {"max_failures": 3, "max_crashes": 1})
    console.run("policy", "set", "--queue", "slow", "max_failures=none", "--force", status=2)
    console.run("policy", "set", "--queue", "slow", "max_failures=9", "--force")
    found = {each["task"]: each for each in console.json("policy", "get")["tasks"]}
    assert found["queue:slow"]["values"] == {"max_crashes": 4, "max_failures": 9}
    assert found["queue:slow"]["origins"] == {"max_crashes": "setting", "max_failures": "override"}
    assert "not a guarded task" not in console.out("policy", "get")
    assert [cell for cell in _row(console, "queue:celery") if cell][:2] == ["1 (override)", "3 (override)"]
    (only,) = console.json("policy", "get", "--queue", "celery")["tasks"]
    assert only["task"] == "queue:celery"
    left = console.json("policy", "unset", "--queue", "celery", "max_crashes")["options"]
    assert left == {"max_failures": 3}
    assert console.json("policy", "unset", "--queue", "celery")["options"] == {}
    assert "policy of queue:celery changed by " in console.out("journal", "tail")
    refused = console.run("policy", "set", "--queue", "celeri", "max_crashes=1", status=1).stderr
    assert "no worker consumes queue 'celeri': did you mean celery?" in refused
    assert "say whose" in console.run("policy", "unset", status=2).stderr
    assert "say what" in console.run("policy", "set", TASK, status=2).stderr
