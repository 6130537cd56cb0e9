"""What the reading verbs print, for people and for programs."""

from __future__ import annotations

import base64
import json
import re
import time
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import chord
from kombu.compression import compress

from celery_poison.causes import Evidence
from celery_poison.cli.celery_command import poison
from celery_poison.cli.status import _deaths_line, _time_lines
from celery_poison.desk.queues import Backlog
from celery_poison.extensions.black_box.evidence import GrowthEvidence
from celery_poison.extensions.proposals.proposal import ProposedRule, sheet
from celery_poison.extensions.proposals.proposals import Proposals
from celery_poison.ledger.fleet import Silence
from celery_poison.ledger.fleet_model import Incident
from celery_poison.model import MessageRecord
from celery_poison.rules.failures import KeptFailure, PastAttempt, earlier_of
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.ledger.grouping import group_anew

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eevil\n"


# --- list ------------------------------------------------------------------------------------------


def test_SAP_7_list_prints_what_is_in_quarantine_newest_first(console: Console, keeper: Keeper) -> None:
    first = keeper.send_and_keep("fleet.healthy", 1)
    second = keeper.send_and_keep("fleet.kill_child", cause="exit:7")
    assert [message["mid"] for message in console.json("list")] == [second, first]
    heading, *rows = console.out("list").splitlines()
    assert heading.split() == ["ID", "TASK", "CAUSE", "WHERE", "SIZE", "AGE", "ARGUMENTS"]
    assert [[*row.split()[1:6], *row.split()[7:]] for row in rows] == [
        ["fleet.kill_child", "exit:7", "-", "77", "bytes", "no", "arguments"],
        ["fleet.healthy", "SIGKILL", "-", "78", "bytes", "1"],
    ]


def test_the_headings_of_list_are_names_of_filters(console: Console, keeper: Keeper) -> None:
    stack = json.dumps({"stack": ["draw (/srv/shop.py:63)"]})
    keeper.app.send_task("fleet.healthy", ["a.png"])
    keeper.keep(keeper.receive(), evidence=stack)
    heading, row = console.out("list").splitlines()
    id, task, cause, where, size, _, _, arguments = row.split()
    assert heading.lower().split() == ["id", "task", "cause", "where", "size", "age", "arguments"]
    same = f"id={id}* task={task} cause={cause.lower()} where={where} size={size} age<1h"
    same += f" 'arguments={arguments}'"
    assert where == "shop.py:63"
    assert len(console.json("list", "--filter", same)) == 1


def test_NEW_14_show_answers_within_24_lines_of_80_columns_and_the_rest_is_asked_for(
    console: Console, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = {
        "stack": [
            "report (/srv/shop/reports/yearly.py:128)",
            *(f"call{n} (/x/celery/{n}.py:1)" for n in range(19)),
        ],
        "rss_kb": 377_856,
        "peak_kb": 377_856,
        "limit_kb": 512_000,
        "limit_of": "group",
        "grown_kb": 323_000,
        "grew_kb_s": 71_000,
        "grew_for_s": 5.0,
        "grew_curve": [40 * n for n in range(24)],
    }
    keeper.app.send_task("fleet.healthy", ["x" * 30] * 5)
    mid = keeper.keep(keeper.receive(), cause="oom", evidence=json.dumps(evidence))
    monkeypatch.setenv("COLUMNS", "80")
    for module in ("output", "show"):
        monkeypatch.setattr(f"celery_poison.cli.{module}.is_terminal", lambda: True)
    told = console.out("show", mid)
    assert sum(-(-len(line) // 80) for line in told.splitlines()) < 24, told
    assert (
        "oom in report (" in told and "Usually: give it more memory" in told and "release --to QUEUE" in told
    )
    assert "headers" not in told and "headers" in console.out("show", mid, "--all")


def test_list_fits_into_80_columns_and_cuts_arguments_and_the_beginning_of_task_names(
    console: Console, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    keeper.app.send_task("fleet.healthy", ["x" * 30] * 3)
    keeper.keep(keeper.receive())
    keeper.app.send_task("fleet.healthy")
    message = keeper.receive()
    message.headers["task"] = f"shop.{'very.' * 20}long"
    keeper.keep(message)
    assert f"shop.{'very.' * 20}long" in console.out("list"), "a pipe gets all of it"
    monkeypatch.setattr("celery_poison.cli.output.is_terminal", lambda: True)
    lines = console.out("list").splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" in lines[1] and "long " in lines[1]


def test_an_id_may_be_shortened_to_what_is_unique(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    first = keeper.send_and_keep("fleet.healthy", 1, task_id="abcd0000-0000-4000-8000-000000000001")
    second = keeper.send_and_keep("fleet.healthy", 2, task_id="abcd1111-0000-4000-8000-000000000002")
    shown = [row.split()[0] for row in console.out("list").splitlines()[1:]]
    assert shown == ["abcd1111", "abcd0000"]
    assert console.json("show", "abcd0")["mid"] == first
    assert console.json("show", second[:12])["mid"] == second
    told = console.run("release", "abcd", status=1).stderr
    assert "may be any of 2 messages" in told and first in told and second in told
    assert "no message 'abc'" in console.run("show", "abc", status=1).stderr
    assert [outcome["mid"] for outcome in console.json("discard", "abcd0")] == [first]
    assert [outcome["mid"] for outcome in console.json("discard", "abcd0000-0", status=1)] == [first]
    assert console.json("show", "abcd0")["state"] == "FAIL"


def test_a_program_must_name_a_message_wholly(keeper: Keeper, fleet: Fleet) -> None:
    keeper.send_and_keep("fleet.healthy", 1, task_id="order-12")
    assert fleet.quarantine.get("order-1").id == "order-12"
    (outcome,) = fleet.quarantine.discard(["order-1"])
    assert not outcome.done


def test_a_filter_that_matches_nothing_says_so(console: Console, keeper: Keeper) -> None:
    keeper.sign()
    keeper.send_and_keep("fleet.healthy", 1)
    assert len(console.json("list", "--filter", "cause=sigkill")) == 1
    said = console.run("list", "--filter", "cause=sigsegv").stderr
    assert said == "no messages in quarantine match 'cause=sigsegv'; without --filter there may be others\n"


def test_an_empty_list_is_no_error_and_says_if_the_ledger_was_never_used(console: Console) -> None:
    assert console.json("list") == []
    result = console.run("list")
    assert result.stdout == "" and "no worker has used this ledger so far" in result.stderr
    Keeper(console.app).sign()
    assert console.run("list").stderr == "no messages in quarantine\n"


def test_a_message_object_has_every_field_of_the_contract(console: Console, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    (message,) = console.json("list")
    assert set(message) == {field.name for field in fields(MessageRecord)}
    contract = "id mid task queue state candidate cause deliveries crashes strikes failures fingerprint"
    contract += " payload_bytes worker first_seen last_seen quarantined_at reason incident"
    assert set(contract.split()) <= set(message)


def test_SAP_7_list_filters_and_pages(console: Console, keeper: Keeper) -> None:
    mids = [keeper.send_and_keep("fleet.healthy", n) for n in range(5)][::-1]
    other = keeper.send_and_keep("fleet.kill_child", cause="oom")
    assert [m["mid"] for m in console.json("list", "--filter", "task=*.healthy")] == mids
    assert [m["mid"] for m in console.json("list", "--filter", "cause=oom crashes>=2 age<1h")] == [other]
    assert [m["mid"] for m in console.json("list", "--filter", "cause=oom", "--filter", "crashes>2")] == []
    paged = console.json("list", "--filter", "task=*.healthy", "--limit", "2", "--offset", "1")
    assert [m["mid"] for m in paged] == mids[1:3]
    result = console.run("list", "--limit", "2")
    assert len(result.stdout.splitlines()) == 3
    assert "--offset 2 shows the next" in result.stderr


def test_list_shows_other_states_too(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    given_up, released = (keeper.send_and_keep("fleet.healthy", n) for n in range(2))
    fleet.quarantine.discard([given_up])
    fleet.quarantine.release([released])
    assert [m["mid"] for m in console.json("list", "--state", "FAIL")] == [given_up]
    assert [m["mid"] for m in console.json("list", "--state", "tbdl")] == [released]
    assert [m["mid"] for m in console.json("list", "--candidates")] == [released]
    assert console.json("list", "--state", "DLNG") == []


def test_list_shows_what_runs_at_this_moment(console: Console, fleet: Fleet, keeper: Keeper) -> None:
    result = fleet.send("slow", 600)
    with fleet.worker() as worker:
        from celery_poison.testing import wait_until

        wait_until(lambda: fleet.marks.all("slow", "start"), what=worker.log_text)
        wait_until(lambda: console.json("list", "--state", "DLNG"), what=worker.log_text)
        (running,) = console.json("list", "--state", "DLNG")
        assert (running["id"], running["task"], running["state"]) == (result.id, "fleet.slow", "DLNG")
        assert running["worker"].startswith("w1@test/")
        assert console.json("status")["states"]["DLNG"] == 1
        worker.kill_group()


# --- show ------------------------------------------------------------------------------------------


def test_SAP_7_show_tells_the_story_history_headers_and_body(console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", "Grüße", headers={"x-tenant": "acme"})
    told = console.out("show", mid, "--all")
    title, arguments, *_ = told.splitlines()
    assert title.endswith("]  SIGKILL") and arguments == 'arguments: "Grüße"'
    assert "In quarantine. It killed its process by SIGKILL. Killed 2 processes." in told
    short = console.json("show", mid)["id"][:8]
    assert f"celery -A proj poison release {short}" in told[: told.index("record")]
    history = told[told.index("history") : told.index("headers")].splitlines()[1:-1]
    assert [line.split("  ")[-1].split()[0] for line in history] == ["killed", "killed", "moved"]
    assert any(line.split() == ["x-tenant", "acme"] for line in told.splitlines())
    assert '"Grüße"' in told


def test_show_as_json_has_the_exact_body_beside_the_decoded_one(console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, task_id="by-task-id")
    told = console.json("show", "by-task-id")
    body = base64.b64decode(told["body_base64"])
    assert told["mid"] == mid
    assert told["body"] == json.loads(body)
    assert told["headers"]["task"] == "fleet.healthy"
    assert [entry["event"] for entry in told["history"]] == ["crashed", "crashed", "quarantined"]
    assert console.run("show", "by-task-id", "--raw").stdout_bytes == body


def test_show_never_opens_a_pickle_and_shows_its_bytes(console: Console, keeper: Keeper) -> None:
    from tests.apps.tasks import KillsItsReader

    mid = keeper.send_and_keep("fleet.unpickled", KillsItsReader(), serializer="pickle")
    told = console.out("show", mid, "--all")
    assert "application/x-python-serialize" in told
    assert "00000000  80 " in told
    assert console.json("show", mid)["body"] is None


def test_show_unpacks_a_compressed_body_but_no_bomb(console: Console, keeper: Keeper) -> None:
    packed = keeper.send_and_keep("fleet.healthy", "x" * 3000, compression="gzip")
    assert "compressed (application/x-gzip)" in console.out("show", packed, "--all")
    assert console.json("show", packed)["body"][0] == ["x" * 3000]
    keeper.app.tasks["fleet.healthy"].delay(1)
    message = keeper.receive()
    body, method = compress(b"[" * 50_000_000, "gzip")
    headers = json.dumps({**message.headers, "compression": method})
    bomb = keeper.keep(message, body=body, headers=headers)
    assert console.json("show", bomb)["body"] is None
    assert "more bytes" in console.out("show", bomb, "--all")


def test_show_remembers_from_the_journal_what_has_ended_since(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    id = fleet.quarantine.get(mid).id
    fleet.quarantine.release([mid], actor="ann", note="why not")
    with fleet.worker():
        fleet.app.AsyncResult(id).get(timeout=PATIENCE)
    told = console.out("show", id, "--all")
    assert "It was released by ann: why not; then it ended well." in told
    seen = console.json("show", id[:8])
    assert (seen["id"], seen["state"], seen["releases"]) == (id, "DLVD", 1)


def test_show_leads_with_the_line_of_the_users_code_and_hides_what_is_to_be_redacted(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    keeper.app.send_task("fleet.healthy", ["a"], {"seconds": 1, "api_token": "s3cret"})
    stack = ("string_at (/usr/lib/python3.11/ctypes/__init__.py:5)", "resize (/srv/shop.py:42)")
    evidence = Evidence(signal=11, stack=stack).encode()
    mid = keeper.keep(keeper.receive(), cause="signal:11", evidence=evidence)
    told = console.out("show", mid, "--all")
    title, arguments, *_ = told.splitlines()
    assert title.endswith("SIGSEGV in resize (/srv/shop.py:42)")
    assert arguments == 'arguments: "a", seconds=1, api_token="(hidden)"'
    assert "s3cret" not in told and "(hidden)" in told[told.index("body") :]
    assert console.json("show", mid)["body"][1]["api_token"] == "s3cret"
    assert "s3cret" not in json.dumps(console.json("list"))


@pytest.mark.parametrize("verb", ["show", "list", "journal"])
def test_nothing_that_was_stored_reaches_the_terminal_unescaped(
    verb: str, console: Console, keeper: Keeper
) -> None:
    keeper.app.tasks["fleet.healthy"].apply_async(
        [ESCAPES], task_id=f"id{ESCAPES}", headers={ESCAPES: ESCAPES}
    )
    message = keeper.receive()
    message.headers["task"] = f"fleet.healthy{ESCAPES}"
    mid = keeper.keep(message)
    arguments = {"show": ("show", mid, "--all"), "list": ("list",), "journal": ("journal", "tail")}[verb]
    told = console.out(*arguments)
    assert "fleet.healthy" in told or verb == "list"
    assert not set(told) & {"\x1b", "\x07", "\r", "\x9b", "\u202e"}, told
    told = console.out(*arguments, "--json")
    assert told.isascii()
    assert all(c.isprintable() or c == "\n" for c in told)


@pytest.mark.parametrize("verb", poison.list_commands(click.Context(poison)))
def test_h_is_help(verb: str, console: Console) -> None:
    assert console.out(verb, "-h") == console.out(verb, "--help")


# --- the others ------------------------------------------------------------------------------------


def test_status_counts_and_says_loudly_what_is_wrong(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    fleet.quarantine.discard([keeper.send_and_keep("fleet.healthy", 2)])
    seen = console.json("status")
    assert seen["states"] == {"NDLV": 1, "FAIL": 1, "DLNG": 0}
    assert seen["workers"] == {"alive": 0, "dead": 0, "stopping": 0}
    assert any("no worker is alive" in warning for warning in seen["faults"])
    assert "WARNING" in console.out("status")
    about = {"unguarded": 3, "ledger_errors": 2, "node": "w1@test"}
    keeper.ledger.fleet.beat("w1@test/b00t", about, first=True)
    seen = console.json("status")
    assert (seen["unguarded"], seen["ledger_errors"], seen["workers"]["alive"]) == (3, 2, 1)
    assert "3 tasks ran unguarded" in console.out("status")


def test_NEW_14_status_says_whether_it_goes_on_whether_others_are_served_and_no_zeros(
    console: Console, keeper: Keeper, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = console.out("status")
    assert not {"lost", "served", "quarantine"} & {line.split(" ")[0] for line in empty.splitlines()}
    assert "death" not in empty
    keeper.send_and_keep("fleet.healthy", 1)
    fleet.app.send_task("fleet.healthy", [2])
    lines = console.out("status").splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines if " " in line)
    lately = f"of fleet.healthy; 2 in the last hour, 0 in the one before  {'▁' * 23}█ 24 h"
    assert re.fullmatch(rf"the last death \d+ s ago, {lately}", lines[1]), "whether it goes on"
    assert rows["served"] == "waiting: 1 in celery", "no worker lives, and its app knows the queue"
    assert console.json("status")["lately"]["by_hour"] == [*[0] * 23, 2]
    assert console.json("status", "--check", status=2)["queues"] == [], "a probe has nothing counted"
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("celery_poison.cli.status.time.sleep", sleep)
    assert console.out("status", "--watch").count("1 message needs a decision") == 2
    for other in ("--json", "--check"):
        assert "leave out --json and --check" in console.run("status", "--watch", other, status=2).stderr


@pytest.mark.parametrize(
    ("waiting", "served"),
    [
        ({"a": 0, "b": 0}, "nothing waits in a queue"),
        ({"a": 0, "b": None}, "how much waits is not known"),
        ({}, "how much waits is not known"),
        ({"a": 9, "b": 120, "c": 0}, "waiting: 120 in b, 9 in a"),
        ({"a": 0, "mine.quarantine": 7}, "nothing waits in a queue"),
        ({"mine.quarantine": 7}, "how much waits is not known"),
    ],
)
def test_NEW_14_nothing_waits_only_where_all_was_counted_and_what_waits_for_a_person_is_not_unserved(
    waiting: dict[str, int | None], served: str
) -> None:
    queues = [Backlog(queue, number, 0, 0, None) for queue, number in waiting.items()]
    seen: Any = SimpleNamespace(at=9.0, ended_at=4.0, lost=[], queues=queues)
    assert dict(_time_lines(seen, "mine.quarantine")) == {"served": f"a task ended 5 s ago; {served}"}
    seen.ended_at = None
    assert bool([*_time_lines(seen, "mine.quarantine")]) == served.startswith("waiting")


def test_NEW_14_whether_tasks_still_die_is_said_in_words_that_fit_the_hours() -> None:
    def line(ago: float | None, task: str = "", **deaths: int) -> list[str]:
        by_hour = [deaths.get(f"h{back}", 0) for back in range(23, -1, -1)]
        lately = SimpleNamespace(last=None if ago is None else 100_000 - ago, by_hour=by_hour, task=task)
        seen: Any = SimpleNamespace(at=100_000.0, lately=lately, worker_deaths=died)
        return [*_deaths_line(seen)]

    died: list[Incident] = []
    assert line(None) == []
    assert line(95.0, h0=3, h1=1) == [
        f"the last death 2 min ago; 3 in the last hour, 1 in the one before  {'▁' * 22}▃█ 24 h"
    ]
    assert line(95.0, "shop.mails", h0=1)[0].startswith("the last death 2 min ago, of shop.mails; 1 in ")
    assert line(9000.0, h2=1) == [f"no death for 2 h  {'▁' * 21}█▁▁ 24 h"]
    assert line(99_000.0) == ["no death for 1 d"]
    died = [Incident(incident="i", worker="w2@vm/b", cause="worker_lost", how="gone", died_at=99_987.0)]
    assert line(None) == ["worker w2@vm died 13 s ago"]
    row = f"12 in the last hour, 0 in the one before  {'▁' * 23}█ 24 h"
    assert line(300.0, h0=12) == [f"worker w2@vm died 13 s ago, a task 5 min ago; {row}"]
    assert line(5.0, h0=12) == [f"the last death 5 s ago, worker w2@vm died 13 s ago; {row}"], (
        "the later first"
    )
    assert line(300.0, "shop.mails", h0=1)[0].startswith(
        "worker w2@vm died 13 s ago, shop.mails 5 min ago; 1 in"
    )
    died = [replace(died[0], how="frozen"), *died, replace(died[0], died_at=90_000.0)]
    assert line(None) == ["worker w2@vm froze 13 s ago (2 workers in the last hour)"]
    died = died[2:]
    assert "worker" not in line(5.0, h0=1)[0], "that is long ago"
    died = [replace(died[0], died_at=99_000.0)] * 20
    assert line(None) == ["worker w2@vm died 17 min ago (at least 20 workers in the last hour)"]


def test_NEW_7_status_says_that_a_proposal_of_the_pipeline_waits(console: Console, keeper: Keeper) -> None:
    assert console.json("status")["proposal"] is None and "of the pipeline" not in console.out("status")
    rule = ProposedRule(fingerprint=f"{7:016x}", task="t", note="why", caught=4)
    text, effect = sheet([rule], {"max_crashes": 1}, ["because"])
    _, version = Proposals(keeper.ledger).publish(text, effect, lasts_ms=60_000, actor="cron", journalled="")
    seen = console.json("status")["proposal"]
    assert (seen["version"], seen["rules"], seen["caught"], seen["policy"]) == (
        version,
        1,
        4,
        {"max_crashes": 1},
    )
    assert "proposal    1 rule and 1 option of the pipeline" in console.out("status")


def test_status_names_a_ledger_that_is_not_ours(new_fleet: type[Fleet], redis_url: str) -> None:
    fleet = new_fleet(redis_url)
    keeper = Keeper(fleet.app)
    keeper.sign()
    keeper.close()
    fleet.app.main = "another"
    warnings = "\n".join(Console(fleet.app).json("status")["warnings"])
    assert "belongs to app 'fleet'" in warnings


def test_workers_and_incidents_are_listed(console: Console, keeper: Keeper) -> None:
    assert console.json("workers") == console.json("incidents") == []
    keeper.ledger.fleet.beat(
        "w1@test/b00t", {"node": "w1@test", "pool": "solo", "queues": "celery"}, first=True
    )
    (worker,) = console.json("workers")
    assert (worker["node"], worker["alive"]) == ("w1@test", True)
    assert worker["condition"] == "working", "an older version draws no portrait"
    assert "working" in console.out("workers")
    fence, _ = keeper.ledger.fleet.lead("w2@test/b00t", 10_000) or (0, False)
    grew = {"grew_task": "shop.\x1b[1mconvert", "grew_to_kb": 1_677_722, "grew_at": "f (/app/shop.py:63)"}
    evidence = Evidence(oom_likely=True).having(GrowthEvidence(**grew, grew_kb_s=87_891, flat=1))
    keeper.ledger.fleet.declare_dead(
        "w1@test/b00t", "i1", Silence.SILENT, 0, fence, evidence=evidence.encode()
    )
    assert console.json("workers") == []
    told = " ".join(console.out("incidents").split())
    assert "open" in told and "\x1b[1m" not in told
    assert "convert grew 90 MB/s to 1.6 GiB (shop.py:63); 1 other flat." in told
    keeper.ledger.fleet.close_incident(
        "w1@test/b00t", "i1", flagged=2, put_back=5, returned={"celery": 5}, fence=fence
    )
    (incident,) = console.json("incidents")
    assert (incident["incident"], incident["flagged"], incident["put_back"]) == ("i1", 2, 5)
    assert incident["how"] == "silent" and incident["took"] is not None and incident["kind"] == "worker"
    assert "celery: 5" in console.out("incidents")
    assert "died alone" not in console.out("incidents")
    shown = console.run("incidents", "show", "i1")
    assert "  last heard  " in shown.stdout and "  died  " not in shown.stdout, "nobody knows when it died"
    assert "convert grew 90 MB/s to 1.6 GiB" in shown.stdout and "celery: 5" in shown.stdout
    assert "worker w1@test/b00t died" in shown.stdout and "\x1b[1m" not in shown.stdout
    assert [e["event"] for e in console.json("incidents", "show", "i1")["history"]][:1] == ["worker_lost"]
    assert "what followed is not known" not in shown.stdout
    keeper.ledger.client.xtrim(keeper.ledger.keys.journal, maxlen=0, approximate=False)
    unread = "what followed is not known: its death is not among the journal's newest 50,000 entries"
    assert unread in console.out("incidents", "show", "i1")
    assert "nowhere: no incident has that id" in console.run("incidents", "show", "nowhere", status=1).stderr
    console.run("incidents", "i1", status=2)


def test_incidents_counts_the_deaths_of_task_processes_too(console: Console, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    keeper.send_and_keep("fleet.healthy", 2, cause="worker_lost")
    result, ledger = console.run("incidents"), keeper.ledger
    assert "2 task processes died alone, since the ledger began: 2 SIGKILL" in result.stdout
    assert "no worker has died" in result.stderr
    oldest = console.json("list")[-1]["id"][:8]
    rows = [line.split()[1:] for line in result.stdout.splitlines() if line.endswith(oldest)]
    told = [(*row[:2], *row[-2:]) for row in rows]  # between them: how long it ran
    assert told == [("SIGKILL", "fleet.healthy", "-", oldest)] * 2, "each has a line, with what to show"
    assert f"poison show {oldest}" in result.stderr
    died = console.json("incidents")
    told = [(each["kind"], each["task"], each["cause"]) for each in died]
    assert told == [("process", "fleet.healthy", "signal:9")] * 2 and died[0]["ran"] > 0
    assert died[0]["id"].startswith(oldest) and died[0]["noticed_at"] and not died[0]["incident"]
    assert console.json("status")["process_deaths"] == {"signal:9": 2}
    assert "newest 50,000 entries" not in result.stdout + console.out("incidents", "-n", "1")
    ledger.client.xtrim(ledger.keys.journal, maxlen=0, approximate=False)
    rest = console.out("incidents")
    assert "2 of these deaths are not among the journal's newest 50,000 entries" in rest


def test_journal_tail_prints_a_sentence_or_a_json_object_in_each_line(
    console: Console, keeper: Keeper
) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    lines = console.out("journal", "tail", "-n", "2").splitlines()
    assert len(lines) == 2 and "moved to quarantine" in lines[1]
    entries = [json.loads(line) for line in console.out("journal", "tail", "--json").splitlines()]
    assert [entry["event"] for entry in entries] == ["crashed", "crashed", "quarantined"]


def test_journal_tail_is_narrowed_to_deaths_events_tasks_and_a_time(console: Console, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.healthy", 1)
    keeper.send_and_keep("fleet.kill_child", cause="exit:7")

    def events(*options: str) -> list[str]:
        lines = console.out("journal", "tail", "--json", *options).splitlines()
        return [json.loads(line)["event"] for line in lines]

    assert events("--deaths") == ["crashed"] * 4
    assert events("--deaths", "--task", "*.kill_child", "-n", "1") == ["crashed"]
    assert events("--event", "quarantined", "--since", "1h") == ["quarantined"] * 2
    assert events("--deaths", "--since", "0s") == []
    assert "the journal has no such entry" in console.run("journal", "tail", "--event", "gate_closed").stderr
    assert "did you mean crashed?" in console.run("journal", "tail", "--event", "crash", status=2).stderr


def test_first_screens_fit_into_80_columns_say_what_they_found_and_what_to_type(
    console: Console, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("celery_poison.cli.output.is_terminal", lambda: True)
    keeper.send_and_keep("fleet.kill_child")
    ledger, node = keeper.ledger, f"worker1@{'host.' * 10}internal"
    about = {"node": node, "pid": 4711, "pool": "prefork", "concurrency": 8, "queues": "celery,mails,slow"}
    ledger.fleet.beat(f"{node}/b00t", about, first=True)
    led = ledger.fleet.lead("monitor", 60_000)
    assert led is not None
    ledger.fleet.beat("w2@host/b00u", {"node": "w2@host"}, first=True)
    ledger.fleet.declare_dead("w2@host/b00u", "i1", Silence.SILENT, 0, led[0])
    found = {
        ("workers",): "1 worker: 1 alive",
        ("incidents",): "1 worker death, recovery goes on after 1 of them",
        ("journal", "tail"): "the newest ",
        ("list",): "1 message in quarantine, the newest first",
        ("groups",): "1 message in quarantine, in 1 group",
    }
    for verb, first in found.items():
        result = console.run(*verb)
        lines = result.output.splitlines()
        assert max(map(len, lines)) <= 80, result.output
        assert lines[0].startswith(first), result.output
        assert lines[-1].startswith("next: celery "), result.output
        assert first not in result.stdout, "a pipe gets the table alone"
    assert "4711" in console.out("workers"), "what kill takes"
    status = console.run("status").output
    assert any(line.startswith("  celery ") for line in status.splitlines()[:4]), status
    assert "next: " not in status, "it is said once"
    zero = [
        line for line in status.splitlines() if re.search(r"\b0 (messages|rules|task)|^candidates +0", line)
    ]
    assert not [line for line in zero if not line.startswith("quarantine")], "what is zero is left out"


def test_times_are_brief_and_local_and_whole_in_utc_with_an_option(console: Console, keeper: Keeper) -> None:
    keeper.send_and_keep("fleet.kill_child")
    assert re.match(r"\d\d:\d\d:\d\d  ", console.out("journal", "tail"))
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC ", console.out("journal", "tail", "--utc"))
    assert re.match(r"\d\d:\d\d:\d\d  ", console.out("journal", "tail")), "of that one command only"


def test_paths_below_the_working_directory_are_shown_relative_to_it_and_in_json_whole(
    console: Console, keeper: Keeper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frame = f"charge ({tmp_path}/shop/tasks.py:12)"
    mid = keeper.send_and_keep("fleet.segfault", cause="signal:11")
    evidence = json.dumps({"signal": 11, "stack": [frame]})
    keeper.ledger.client.hset(keeper.ledger.keys.message(mid), "evidence", evidence)
    monkeypatch.chdir(tmp_path)
    shown = console.out("show", mid, "--all")
    assert "SIGSEGV in charge (shop/tasks.py:12)" in shown and str(tmp_path) not in shown
    assert console.json("show", mid)["evidence"]["stack"] == [frame]


def test_NEW_5_show_tells_what_can_be_done_about_what_no_task_can_take(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    fleet.send("healthy", 1)
    mid = keeper.keep(keeper.receive(), "unknown_task", crashes=0)
    out = console.out("show", mid, "--all")
    assert "poison release" in out and "poison discard" in out
    assert "runs alone" not in out and "--like" not in out and "--set" not in out


def test_NEW_10_show_leads_with_the_users_line_of_a_failure_and_tells_every_attempt(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    stack = ("fetch (/venv/site-packages/lib.py:3)", "charge (/shop/tasks.py:12)")
    evidence = Evidence(exception="shop.Declined", stack=stack).encode()
    earlier = PastAttempt("OSError", "no route " + ESCAPES, "charge (/shop/tasks.py:9)")
    kept = KeptFailure("shop.Declined", "card 4711", "in charge\nDeclined: card 4711", (earlier,)).encode()
    fleet.send("healthy", 1)
    more = {"failure": kept, "evidence": evidence}
    mid = keeper.keep(keeper.receive(), "failure", crashes=0, **more)
    out = console.out("show", mid, "--all")
    assert "failure in charge (/shop/tasks.py:12)" in out.splitlines()[0]
    assert "shop.Declined  card 4711" in out and "Declined: card 4711" in out
    assert "poison discard" in out and "poison fail" not in out, "its caller was told already"
    assert "no route" in out and "in charge (/shop/tasks.py:9)" in out and "\x1b]" not in out
    told = console.json("show", mid)["failure"]
    assert (told["message"], told["earlier"][0]["exception"]) == ("card 4711", "OSError")
    assert console.json("list", "--filter", "cause=failure")[0]["evidence"]["exception"] == "shop.Declined"
    refused = console.run("block", "--like", mid, status=1)
    assert "block its task instead" in refused.stderr
    console.run("release", mid)
    (copy,) = keeper.raw_on_redis()
    carried = earlier_of(copy["headers"]["poison_failures"])
    assert [attempt.message for attempt in carried] == ["card 4711"], "the next run can read why"


def test_NEW_6_since_and_between_choose_by_the_time_in_quarantine_wherever_a_filter_may_stand(
    console: Console, keeper: Keeper
) -> None:
    client, keys, now = keeper.ledger.client, keeper.ledger.keys, time.time()
    mids = [keeper.send_and_keep("fleet.healthy", hours) for hours in (1, 3, 5)]
    for mid, hours in zip(mids, (1, 3, 5), strict=True):
        at = int((now - 3600 * hours) * 1000)
        client.hset(keys.message(mid), "quarantined_at", at)
        client.zadd(keys.quarantine, {mid: at})
    group_anew(keeper.ledger)

    def found(*typed: str) -> list[str]:
        return [message["mid"] for message in console.json("list", *typed)]

    moment = datetime.fromtimestamp(now - 4 * 3600).isoformat()
    assert found("--since", "2h") == mids[:1] and found("--since", moment) == mids[:2]
    assert found("--between", "4h", "2h") == mids[1:2] == found("--between", moment, "2h")
    assert found("--since", "6h", "--filter", "age>2h") == mids[1:]
    assert len(console.json("release", "--between", moment, "2h", "--dry-run")) == 1
    assert console.json("groups", "--since", "4h")[0]["count"] == 2
    for wrong, said in (
        (("--since", "yesterday"), "write 2h"),
        (("--since", "2999-01-01"), "in the future"),
        (("--between", "2h", "4h"), "the earlier one"),
    ):
        assert said in console.run("list", *wrong, status=2).stderr


def test_NEW_5_what_is_no_task_is_not_offered_a_release(
    console: Console, keeper: Keeper, fleet: Fleet
) -> None:
    fleet.send("healthy", 1)
    mid = keeper.keep(keeper.receive(), "not_a_task", crashes=0)
    result = console.run("show", mid, "--all")
    assert "poison release" not in result.output and "poison discard" in result.output
    assert "Usually: find its sender, then discard." in result.stdout.splitlines()


def test_show_says_what_is_usual_and_what_to_type_for_the_cause_and_folds_the_calls_of_the_worker(
    console: Console, keeper: Keeper
) -> None:
    stack = ["grow (/srv/shop.py:42)", *(f"run (/venv/site-packages/celery/{n}.py:{n})" for n in range(9))]
    mid = keeper.send_and_keep("fleet.healthy", 1, cause="oom")
    evidence = json.dumps({"stack": stack})
    keeper.ledger.client.hset(keeper.ledger.keys.message(mid), "evidence", evidence)
    shown = console.out("show", mid, "--all")
    next, _, rest = shown.partition("record")
    assert "Usually: give it more memory or a smaller input, then release." in next
    assert "poison release --to QUEUE" in next and "poison repro" in next
    assert "grow (" in rest and "9 calls of Celery and its worker below" in rest and "celery/8.py" not in rest


def test_what_was_blocked_is_shown_with_the_rules_and_not_with_another_block(
    console: Console, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1, cause="blocked", crashes=0)
    out = console.out("show", mid, "--all")
    assert "poison block --list" in out and "poison unblock --like" in out
    assert "poison block --like" not in out


def test_NEW_26_show_says_of_a_message_that_it_has_expired(console: Console, keeper: Keeper) -> None:
    then, later = "2001-02-03T04:05:06+00:00", "2999-02-03T04:05:06+00:00"
    past, ahead = (
        keeper.send_and_keep("fleet.healthy", 1, expires=datetime.fromisoformat(each))
        for each in (then, later)
    )
    shown = console.out("show", past)
    assert f"It expired at {then}; a release leaves that out." in " ".join(shown.split()), shown
    assert "It expired at" not in console.out("show", ahead)


def test_show_names_the_chord_that_waits(console: Console, keeper: Keeper, fleet: Fleet) -> None:
    healthy = fleet.app.tasks["fleet.healthy"]
    chord([healthy.s(1)], healthy.si(2)).apply_async()
    mid = keeper.keep(keeper.receive())
    assert "A chord waits for it: fleet.healthy." in console.out("show", mid, "--all")
    assert "may have expired" not in console.out("show", mid, "--all")
    fleet.app.conf.result_expires = 0.001
    assert "Its other results may have expired" in " ".join(console.out("show", mid, "--all").split())


def test_what_came_back_after_a_release_says_so(console: Console, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.healthy", 1)
    assert "came back" not in console.out("show", mid, "--all")
    keeper.ledger.client.hset(keeper.ledger.keys.message(mid), "releases", 1)
    assert "It was released once, and came back." in console.out("show", mid, "--all")
