"""`celery poison pause` and `resume`: what a person keeps in place."""

from __future__ import annotations

import pytest

from celery_poison.desk.owner import default_actor
from celery_poison.plugin import plugin_of
from tests.apps.harness import Fleet
from tests.cli.conftest import Console

TASK = "fleet.kill_child"


def test_a_queue_and_a_task_are_paused_shown_and_resumed(console: Console, fleet: Fleet) -> None:
    paused = console.json("pause", "--queue", "celery", "--note", "relay is down")
    assert (paused["scope"], paused["name"], paused["actor"]) == ("queue", "celery", default_actor())
    told = console.run("pause", "--task", TASK, "--actor", "ann")
    assert told.stdout == f"paused  task {TASK}\n" and "within a heartbeat" in told.stderr
    assert [(row["scope"], row["note"]) for row in console.json("status")["paused"]] == [
        ("queue", "relay is down"),
        ("task", ""),
    ]
    (line,) = [line for line in console.out("status").splitlines() if line.startswith("paused ")]
    assert line.endswith(" by ann") and f" by {default_actor()}: relay is down; task {TASK} since " in line
    assert [row["name"] for row in console.json("resume", "--queue", "celery")] == ["celery"]
    assert console.out("resume", "--task", TASK, "--note", "is back") == f"resumed  task {TASK}\n"
    assert console.json("status")["paused"] == [] and "paused" not in console.out("status")
    assert f"resumed by {default_actor()}: task {TASK}: is back" in console.out("journal", "tail")


def test_workers_tell_which_queues_they_leave_alone(console: Console, fleet: Fleet) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    ledger.fleet.beat("w1@h/b", {"queues": "celery", "paused": "mails,slow"}, first=True)
    assert "  mails (paused), slow (paused), celery  " in console.out("workers")
    (worker,) = console.json("workers")
    assert (worker["queues"], worker["paused"]) == ("celery", "mails,slow")
    console.run("pause", "--queue", "slow")


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("typed", [(), ("--queue", "celery", "--task", TASK)])
def test_one_queue_or_one_task_must_be_named(verb: str, typed: tuple[str, ...], console: Console) -> None:
    assert "say what: --queue NAME or --task NAME" in console.run(verb, *typed, status=2).stderr


def test_what_nobody_knows_is_refused_with_the_nearest_name(console: Console, fleet: Fleet) -> None:
    refused = console.run("pause", "--queue", "celeri", status=1).stderr
    assert "no worker consumes queue 'celeri': did you mean celery?" in refused
    refused = console.run("pause", "--task", "fleet.kill_chil", status=1).stderr
    assert f"guards no task 'fleet.kill_chil': did you mean {TASK}?" in refused
    console.run("pause", "--queue", "elsewhere", "--force")
    console.run("pause", "--task", "elsewhere", "--force")
    assert "queue celery is not paused" in console.run("resume", "--queue", "celery", status=1).stderr
    assert len(console.json("status")["paused"]) == 2


def test_who_only_observes_can_pause_nothing(console: Console, fleet: Fleet) -> None:
    plugin_of(fleet.app).override({"poison_observe_only": True})
    assert "workers hold nothing back" in console.run("pause", "--task", TASK, status=2).stderr
