"""Editing a message and blocking others like it, from a page: what is offered, done and refused."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

from celery_poison.testing import wait_until
from tests import PATIENCE
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN
from tests.flower.test_reading import TOKEN, started

TASK = "fleet.healthy"


def typed_into(page: str, name: str) -> str:
    """What stands in a text area, as a browser shows it."""
    (found,) = re.findall(rf'<textarea[^>]* name="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    return html.unescape(found)


def test_NEW_6_a_message_is_edited_on_a_page_and_its_copy_runs_with_the_new_arguments(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep(TASK, 1)
    id = fleet.quarantine.get(mid).id
    flower = started(serve, mid)
    assert f'href="/poison/edit/{mid}"' in flower.get(f"/poison/message/{mid}").text
    page = flower.get(f"/poison/edit/{mid}").text
    assert (json.loads(typed_into(page, "args")), json.loads(typed_into(page, "kwargs"))) == ([1], {})
    form = {"args": "[2]", "kwargs": "{}", "queue": "celery", "note": "two was meant"}
    answer = flower.post(f"/poison/edit/{mid}", form, **TOKEN)
    assert (answer.status, answer.headers["Location"]) == (303, f"/poison/message/{mid}")
    with fleet.worker():
        assert fleet.app.AsyncResult(id).get(timeout=PATIENCE) == 2
    (entry,) = [each for each in fleet.quarantine.queries.journal() if each["event"] == "edited"]
    assert entry["actor"] == "ann (flower)" and entry["note"].endswith("two was meant")


def test_a_copy_that_is_held_waits_in_quarantine_and_is_shown(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep(TASK, 1)
    flower = started(serve, mid)
    form = {"args": "[2]", "kwargs": "{}", "queue": "", "hold": "1"}
    answer = flower.post(f"/poison/edit/{mid}", form, **TOKEN)
    (copy,) = fleet.quarantine.list()
    assert (answer.headers["Location"], copy.arguments) == (f"/poison/message/{copy.mid}", "2")


@pytest.mark.parametrize(
    ("typed", "status", "said"),
    [
        ({"args": "[2"}, 400, "args: this is no JSON"),
        ({"args": "{}"}, 400, "args: write an array in JSON"),
        ({"kwargs": "[]"}, 400, "kwargs: write an object in JSON"),
        ({}, 409, "this changes nothing"),
        ({"queue": "nowhere"}, 409, "nowhere"),
        ({"kwargs": '{"no_such": 1}'}, 409, "does not take these arguments"),
    ],
)
def test_a_wrong_edit_says_what_is_wrong_changes_nothing_and_loses_nothing_that_was_typed(
    serve: Serve, fleet: Fleet, keeper: Keeper, typed: dict[str, str], status: int, said: str
) -> None:
    mid = keeper.send_and_keep(TASK, 1)
    flower = started(serve, mid)
    form = {"args": "[1]", "kwargs": "{}", "queue": "celery", "note": "try", **typed}
    answer = flower.post(f"/poison/edit/{mid}", form, **TOKEN)
    assert answer.status == status and said in html.unescape(answer.text)
    assert typed_into(answer.text, "args") == form["args"] and 'value="try"' in answer.text
    assert [each.mid for each in fleet.quarantine.list()] == [mid]


def test_what_a_publisher_wrote_is_no_markup_on_the_page_where_it_is_edited_and_hides_nothing(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    hostile = "</textarea><script>\u202egnp.\ud800\U000e0001\x9b"
    mid = keeper.send_and_keep(TASK, hostile)
    flower = started(serve, mid)
    answer = flower.get(f"/poison/edit/{mid}")
    assert answer.status == 200 and "<script>\\u202e" not in answer.text
    shown = typed_into(answer.text, "args")
    assert json.loads(shown) == [hostile]
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


def test_what_cannot_be_edited_is_not_offered_and_refused(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    mid = keeper.send_and_keep("fleet.unpickled", {"a": 1}, serializer="pickle")
    flower = started(serve, mid)
    assert "/poison/edit/" not in flower.get(f"/poison/message/{mid}").text
    assert flower.get(f"/poison/edit/{mid}").status == 409
    assert flower.get("/poison/edit/nowhere").status == 404


# --- blocking ------------------------------------------------------------------------------------


def test_NEW_3_others_like_a_message_are_blocked_from_its_page_and_let_run_again(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep(TASK, 1)
    flower = started(serve, mid)
    assert f'href="/poison/block?id={mid}"' in flower.get(f"/poison/message/{mid}").text
    page = flower.get(f"/poison/block?id={mid}").text
    fingerprint = fleet.quarantine.get(mid).fingerprint
    assert f'name="fingerprint" value="{fingerprint}"' in page and f'name="task" value="{TASK}"' in page
    form = {"kind": "fingerprint", "fingerprint": fingerprint, "task": TASK, "expires": "2h", "note": "why"}
    assert flower.post("/poison/block", form, **TOKEN).headers["Location"] == "/poison/block"
    (rule,) = fleet.quarantine.blocks().rules
    assert (rule.kind, rule.name, rule.task, rule.actor) == ("fingerprint", fingerprint, TASK, "ann (flower)")
    assert rule.until is not None and rule.note == "why"
    assert f"<code>{fingerprint}</code>" in flower.get("/poison/block").text
    assert flower.post("/poison/block/end", {"kind": rule.kind, "name": rule.name}, **TOKEN).status == 303
    assert fleet.quarantine.blocks().rules == []
    assert "Nothing is blocked" in flower.get("/poison/block").text


def test_a_task_is_blocked_and_sending_to_a_queue_with_consuming_it(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    keeper.send_and_keep(TASK, 1)
    flower = serve(user=ANN)
    assert f'href="/poison/block?task={TASK}"' in flower.get("/poison").text
    assert flower.post("/poison/block", {"kind": "task", "task": TASK}, **TOKEN).status == 303
    form = {"kind": "sending", "sending": "celery", "consuming": "1", "note": "mails"}
    assert flower.post("/poison/block", form, **TOKEN).status == 303
    assert [rule.name for rule in fleet.quarantine.blocks().rules] == [TASK]

    def held() -> set[tuple[str, str]]:
        return {(each["kind"], each["name"]) for each in flower.get("/api/poison/held").json}

    wait_until(lambda: held() == {("sending", "celery"), ("queue", "celery")}, what="both are known")


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"kind": "task", "task": ""}, "Say which task"),
        ({"kind": "task", "task": "nowhere"}, "nowhere"),
        ({"kind": "task", "task": TASK, "expires": "soon"}, "soon"),
        ({"kind": "fingerprint", "fingerprint": "xyz"}, "is no fingerprint"),
        ({"kind": "sending", "sending": "celery", "expires": "2h"}, "no time limit"),
        ({"kind": "sending", "sending": "celery", "of": TASK, "consuming": "1"}, "whole queue"),
    ],
)
def test_a_wrong_block_says_what_is_wrong_and_keeps_what_was_typed(
    serve: Serve, fleet: Fleet, keeper: Keeper, form: dict[str, Any], said: str
) -> None:
    keeper.send_and_keep(TASK, 1)
    flower = serve(user=ANN)
    answer = flower.post("/poison/block", {**form, "note": "try"}, **TOKEN)
    assert answer.status in (400, 409) and said in html.unescape(answer.text)
    assert 'value="try"' in answer.text and f'value="{form["kind"]}" checked' in answer.text
    assert fleet.quarantine.blocks().rules == []
    assert flower.get("/api/poison/held").json == []


def test_a_task_that_this_app_does_not_guard_is_blocked_by_force(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    keeper.send_and_keep(TASK, 1)
    flower = serve(user=ANN)
    form = {"kind": "task", "task": "another.apps", "force": "1"}
    assert flower.post("/poison/block", form, **TOKEN).status == 303
    assert [rule.name for rule in fleet.quarantine.blocks().rules] == ["another.apps"]


def test_programs_block_list_and_unblock_by_the_api(serve: Serve, fleet: Fleet, keeper: Keeper) -> None:
    keeper.send_and_keep(TASK, 1)
    flower = serve(user=ANN)
    assert flower.get("/api/poison/blocks").json == []
    rule = flower.post_json("/api/poison/block", {"kind": "task", "name": TASK, "note": "why"}).json
    (listed,) = flower.get("/api/poison/blocks").json
    assert (rule["name"], listed["name"], listed["note"]) == (TASK, TASK, "why")
    assert flower.post_json("/api/poison/block", {"kind": "sending", "name": ""}).status == 400
    assert flower.post_json("/api/poison/block", {"kind": "moon", "name": "x"}).status == 400
    assert flower.post_json("/api/poison/unblock", {"kind": "task", "name": TASK}).status == 200
    assert flower.post_json("/api/poison/unblock", {"kind": "task", "name": TASK}).status == 404


# --- groups --------------------------------------------------------------------------------------


def test_NEW_10_failures_are_grouped_by_what_was_raised_and_a_row_acts_on_that_alone(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mids = []
    for number, raised in enumerate(("KeyError", "KeyError", "ValueError")):
        fleet.send("healthy", number)
        evidence = json.dumps({"exception": raised})
        mids += [keeper.keep(keeper.receive(), "failure", 0, fingerprint=raised.lower(), evidence=evidence)]
    other = keeper.send_and_keep("fleet.kill_child")
    flower = started(serve, *mids, other)
    groups = flower.get("/poison").text.partition('id="poison-groups"')[2].partition("</table>")[0]
    assert groups.count("failure: KeyError</a>") == 1 and groups.count("failure: ValueError</a>") == 1
    asked = [html.unescape(text) for text in re.findall(r'name="filter" value="([^"]*)"', groups)]
    (chosen,) = [text for text in asked if "valueerror" in text]
    assert (
        "Discard 1 message?"
        in flower.post("/poison/preview/discard", {"everything": "1", "filter": chosen}, **TOKEN).text
    )
    filtered = flower.get(f"/poison?filter={chosen.replace('=', '%3D').replace(' ', '+')}").text
    assert filtered.count('aria-current="true"') == 1, "it stays beside the list, and is the chosen one"
    assert "of 1" in filtered


def test_failures_beyond_those_that_are_read_are_one_group_and_each_is_counted_once(
    fleet: Fleet, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_poison.desk.finder._GROUPS_READ", 1)
    for number, raised in enumerate(("keyerror", "keyerror", "valueerror")):
        fleet.send("healthy", number)
        keeper.keep(keeper.receive(), "failure", 0, fingerprint=raised)
    finder = fleet.quarantine.finder
    found = [(group.fingerprint, group.count) for group in finder.for_people(finder.by_queue())]
    assert found == [("keyerror", 2), ("", 1)]
