"""Release, fail and discard from the command line, and the exit status of each way to go wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_poison.broker.bounds import _BOUNDS
from celery_poison.desk.owner import default_actor
from celery_poison.testing import RedisServer
from tests.apps.factory import build_app
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper

VERBS = {"release": "TBDL", "fail": "FAIL", "discard": "FAIL"}


@pytest.mark.parametrize("verb", VERBS)
def test_SAP_7_a_person_decides_about_one_message(
    verb: str, console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    (outcome,) = console.json(verb, mid, "--note", "because", "--ticket", "INC-412")
    assert outcome == {"mid": mid, "id": outcome["id"], "task": "fleet.healthy", "done": True, "error": ""}
    assert fleet.quarantine.get(mid).state == VERBS[verb]
    entry = fleet.quarantine.queries.journal()[-1]
    assert (entry["actor"], entry["note"]) == (default_actor(), "INC-412: because")


@pytest.mark.parametrize("verb", VERBS)
def test_a_refusal_is_said_once_and_the_exit_status_is_1(verb: str, console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    result = console.run(verb, "nowhere", mid, status=1)
    assert "refused  nowhere: no message 'nowhere'" in result.stderr
    assert len(result.stdout.splitlines()) == 1
    done = console.json(verb, mid, status=1)[0]
    assert not done["done"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("chosen", [("--filter", "task=nothing"), ("--all",)])
def test_nothing_matched_is_exit_status_1(verb: str, chosen: tuple[str, ...], console: Console) -> None:
    assert "nothing matched" in console.run(verb, *chosen, status=1).stderr
    assert console.json(verb, *chosen, status=1) == []
    console.run(verb, *chosen, "--dry-run", status=1)


def test_many_messages_are_touched_only_when_confirmed(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    mids = {keeper.send_and_keep("fleet.healthy", n) for n in range(3)}
    result = console.run("release", "--filter", "task=fleet.*", status=2)
    assert "3 messages match: add --yes" in result.stderr
    console.run("release", "--all", "--json", status=2)
    assert {record.mid for record in fleet.quarantine.list()} == mids
    assert len(console.json("release", "--filter", "task=fleet.*", "--yes")) == 3
    assert not fleet.quarantine.list()


def test_one_matching_message_needs_no_confirmation(console: Console, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    assert console.json("discard", "--filter", "task=fleet.healthy")[0]["done"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_touches_nothing(verb: str, console: Console, keeper: Keeper, fleet: Fleet) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    before = fleet.quarantine.queries.journal()
    result = console.run(verb, "--all", "--dry-run")
    assert "2 messages would be" in result.stderr
    assert {m["mid"] for m in console.json(verb, "--all", "--dry-run")} == set(mids)
    assert [m["mid"] for m in console.json(verb, mids[0], "nowhere", "--dry-run", status=1)] == mids[:1]
    assert fleet.quarantine.queries.journal() == before
    assert len(fleet.quarantine.list()) == 2


def test_release_of_an_unknown_task_wants_force(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    fleet.app.tasks.pop("fleet.healthy")
    assert "no task 'fleet.healthy' is registered" in console.run("release", mid, status=1).stderr
    console.run("release", mid, "--force")


@pytest.mark.parametrize(
    "arguments",
    [
        ("release",),
        ("release", "id", "--all"),
        ("release", "--filter", "task=x", "--all"),
        ("release", "--filter", ""),
        ("discard", "--filter", "tusk=x"),
        ("discard", "--filter", "crashes>nan"),
        ("fail", "--filter", "age>3"),
        ("fail", "--filter", "task>3"),
        ("fail", "--filter", "nonsense"),
        ("list", "--state", "GONE"),
        ("list", "--limit", "0"),
        ("release", "--all", "--soak", "5m"),
        ("release", "--all", "--canary", "--soak", "5"),
        ("release", "--all", "--rate", "10"),
        ("release", "--all", "--rate", "0/s"),
        ("release", "--all", "--max-waiting", "0"),
        ("release", "--all", "--after", "1h", "--keep-counts"),
        ("discard", "--all", "--canary"),
        ("show",),
        ("show", "id", "--raw", "--json"),
        ("journal", "tail", "-n", "x"),
        ("lst",),
    ],
)
def test_wrong_usage_is_exit_status_2(arguments: tuple[str, ...], console: Console, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    result = console.run(*arguments, status=2)
    assert result.stdout == ""
    assert result.stderr


def test_a_mistyped_field_or_verb_is_answered_with_the_right_one(console: Console) -> None:
    assert "did you mean task?" in console.run("list", "--filter", "tusk=x", status=2).stderr
    assert "Did you mean" in console.run("relase", status=2).stderr


@pytest.mark.parametrize("verb", ["list", "show", "release", "fail", "discard", "workers", "incidents"])
def test_the_ledger_of_another_app_is_exit_status_2(
    verb: str, console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    fleet.app.main = "another"
    arguments = ["id"] if verb in ("show", *VERBS) else []
    result = console.run(verb, *arguments, status=2)
    assert "belongs to app 'fleet'" in result.stderr


# --- release with care -----------------------------------------------------------------------------


def test_NEW_6_a_canary_that_does_not_end_keeps_the_others_in_quarantine_and_is_exit_status_1(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    for n in range(8):
        keeper.send_and_keep("fleet.healthy", n)
    newest = fleet.quarantine.list()[0]
    result = console.run("release", "--all", "--yes", "--canary", "--soak", "1s", status=1)
    assert result.stdout.split() == ["released", newest.id, "fleet.healthy"]
    waits, refused, summary = result.stderr.splitlines()
    assert waits == f"the canary {newest.id} is released: it has 1 s to end well, 7 wait for that"
    why = f"the canary {newest.id} has not ended within 1 s; a longer soak gives it more time"
    assert refused == f"refused  7 messages: not released: {why}"
    assert summary == "1 message released, 7 refused"
    assert len(fleet.quarantine.list()) == 7
    assert len(keeper.raw_on_redis()) == 1


def test_NEW_6_a_release_keeps_the_counts_where_it_is_asked_to(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    kept, anew = (keeper.send_and_keep("fleet.healthy", n) for n in range(2))
    console.run("release", kept, "--keep-counts")
    console.run("release", anew)
    counts = [(r.crashes, r.strikes) for r in map(fleet.quarantine.get, (kept, anew))]
    assert counts == [(2, 2), (2, 0)]


def test_NEW_6_releases_at_a_rate_to_another_queue(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(2)]
    assert (
        "no worker consumes a queue 'big'"
        in console.run("release", "--all", "--yes", "--to", "big", status=1).stderr
    )
    options = ("--rate", "600/m", "--max-waiting", "9", "--keep-going", "--to", "big", "--force")
    before = time.monotonic()
    assert {outcome["mid"] for outcome in console.json("release", *mids, *options)} == {*mids}
    assert time.monotonic() - before >= 0.1
    assert len(keeper.raw_on_redis("big")) == 2


# --- Redis -----------------------------------------------------------------------------------------

EVERY_VERB = [
    ("status",),
    ("list",),
    ("show", "id"),
    *((verb, "id") for verb in VERBS),
    ("workers",),
    ("incidents",),
    ("journal", "tail"),
]


@pytest.mark.parametrize("arguments", EVERY_VERB, ids=lambda arguments: arguments[0])
def test_an_unreachable_Redis_is_one_line_and_exit_status_3(
    arguments: tuple[str, ...], new_fleet: Any
) -> None:
    fleet = new_fleet("redis://:s3cret@127.0.0.1:1/0")
    result = Console(fleet.app).run(*arguments, "--json", status=3)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("celery poison: ") and "Redis is not reachable" in line
    assert "s3cret" not in line


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("discard", "fail")])
def test_a_Redis_that_refuses_writes_is_exit_status_3_and_nothing_is_lost(
    verb: str, new_fleet: Any, new_server: Callable[..., RedisServer]
) -> None:
    server = new_server()
    fleet = new_fleet(server.url())
    keeper = Keeper(fleet.app)
    mid = keeper.send_and_keep("fleet.healthy", 1)
    keeper.close()
    server.client().config_set("maxmemory", 1)
    result = Console(fleet.app).run(verb, mid, status=3)
    assert "out of memory" in result.stderr
    assert [message["mid"] for message in Console(fleet.app).json("list")] == [mid]


@pytest.mark.parametrize("verb", [arguments[0] for arguments in EVERY_VERB])
def test_a_wrong_setting_is_exit_status_2_and_names_the_right_one(
    verb: str, new_fleet: Any, redis_url: str
) -> None:
    fleet = new_fleet(redis_url, poison_max_crash=3)
    arguments = {"journal": ["tail"]}.get(verb, ["id"] if verb in ("show", *VERBS) else [])
    result = Console(fleet.app).run(verb, *arguments, status=2)
    assert "did you mean poison_max_crashes?" in result.stderr
    assert result.stdout == ""


def test_a_broker_that_does_not_answer_holds_nobody_up_not_even_for_an_errback(
    new_fleet: Any, new_server: Callable[..., RedisServer], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_BOUNDS, "socket_timeout", 0.5)
    broker = new_server()
    fleet = new_fleet(broker.url(), poison_redis_url=redis_url)
    keeper = Keeper(fleet.app)
    fleet.send("healthy", 1, link_error=fleet.app.tasks["fleet.healthy"].s())
    mid = keeper.keep(keeper.receive())
    keeper.close()
    broker.pause()
    operators = build_app(fleet.environ())
    assert (
        "an errback not be sent: OperationalError('Timeout"
        in Console(operators).run("fail", mid, status=1).stderr
    )
    broker.resume()
    Console(operators).run("fail", mid)
    operators.close()


def test_NEW_6_a_ticket_is_a_name_and_stands_before_the_note_of_every_act(
    console: Console, fleet: Fleet
) -> None:
    assert "a name without blanks" in console.run("release", "--all", "--ticket", "a b", status=2).stderr
    console.run("block", "--task", "fleet.healthy", "--ticket", "INC-412")
    assert fleet.quarantine.blocks().rules[0].note == "INC-412"
