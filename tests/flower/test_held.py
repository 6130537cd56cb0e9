"""Flower shows what is held back, and lets it go in the name of the user (WAS-6, WAS-7, TP1-4)."""

from __future__ import annotations

from celery_poison.extensions.holds.pauses import HoldPauses, Scope
from celery_poison.extensions.outbox.desk import OutboxDesk
from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.flower.conftest import Serve
from tests.flower.served import ANN

TOKEN = {"Cookie": "_xsrf=0123456789abcdef", "X_XSRFToken": "0123456789abcdef"}
HOSTILE = "<img src=x onerror=alert(1)>"


def test_WAS_6_WAS_7_TP1_4_what_is_held_back_is_shown_and_let_go_in_the_name_of_the_user(
    serve: Serve, fleet: Fleet
) -> None:
    flower, quarantine = serve(user=ANN), fleet.quarantine
    assert "poison-held-title" not in flower.get("/poison").text
    ledger = plugin_of(fleet.app).open_ledger()
    quarantine.pause_queue(HOSTILE, actor="bob", note=f"the disk is full {HOSTILE}", force=True)
    quarantine.pause_task("shop.charge", actor="bob", force=True)
    HoldPauses(ledger).suspend(
        "w1@a", "slow", lasts_ms=10**7, most=9, worker="w1@a/b", reason="9 of 10 failed"
    )
    OutboxDesk(plugin_of(fleet.app)).block("mail", actor="bob", note="maintenance")

    wait_until(lambda: len(flower.get("/api/poison/held").json) == 4, what="all four are known")
    page = flower.get("/poison").text
    assert HOSTILE not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
    for said in ("w1@a does not consume queue slow", "9 of 10 failed", "Nothing is sent to queue mail"):
        assert said in page, said
    rows = flower.get("/api/poison/held").json
    for row in rows:
        wanted = {name: row[name] for name in ("kind", "name", "of")}
        form = wanted["kind"] in (Scope.QUEUE, "sending")
        answer = (
            flower.post("/poison/held/resume", {**wanted, "note": "over"}, **TOKEN)
            if form
            else flower.post_json("/api/poison/held/resume", {**wanted, "note": "over"})
        )
        assert answer.status == (303 if form else 200), (wanted, answer.text)
    wait_until(lambda: not flower.get("/api/poison/held").json, what="nothing is held back")
    assert not quarantine.pauses() and not OutboxDesk(plugin_of(fleet.app)).lanes()
    acted = [entry for entry in quarantine.queries.journal() if entry.get("actor") == "ann (flower)"]
    assert len(acted) == 4, "each in her name"


def test_WAS_6_what_is_over_already_is_told_to_a_program_and_no_error_for_a_person(
    serve: Serve, fleet: Fleet
) -> None:
    flower = serve(user=ANN)
    gone = {"kind": "queue", "name": "mail"}
    assert flower.post("/poison/held/resume", gone, **TOKEN).status == 303
    assert flower.post_json("/api/poison/held/resume", gone).status == 404
    wrong = flower.post_json("/api/poison/held/resume", {"kind": "fleet", "name": "mail"})
    assert wrong.status == 400 and "queue, task, endpoint, version, sending" in wrong.json["error"]


def test_TP1_6_WAS_7_a_person_holds_back_what_she_let_go_before(serve: Serve, fleet: Fleet) -> None:
    flower = serve(user=ANN)
    assert "Hold something back" in flower.get("/poison").text
    begun = [
        {"kind": "queue", "name": "celery", "note": "the disk is full"},
        {"kind": "task", "name": "fleet.healthy", "note": "a bug"},
        {"kind": "sending", "name": "mail", "of": "fleet.slow", "note": "maintenance"},
    ]
    assert flower.post("/poison/held/begin", begun[0], **TOKEN).status == 303
    for each in begun[1:]:
        answer = flower.post_json("/api/poison/held/begin", each)
        assert (answer.status, answer.json["note"]) == (200, each["note"]), answer.text
    wait_until(lambda: len(flower.get("/api/poison/held").json) == 3, what="all are known")
    rows = flower.get("/api/poison/held").json
    assert [{name: row[name] for name in ("kind", "name", "note")} for row in rows] == [
        {name: each[name] for name in ("kind", "name", "note")} for each in begun
    ]
    assert {row["by"] for row in rows} == {"ann (flower)"} and rows[2]["of"] == "fleet.slow"


def test_TP1_6_what_cannot_be_held_back_is_told(serve: Serve, fleet: Fleet) -> None:
    flower = serve(user=ANN)
    wrong = flower.post_json("/api/poison/held/begin", {"kind": "endpoint", "name": "mail"})
    assert wrong.status == 400 and "queue, task, sending" in wrong.json["error"]
    for kind in ("queue", "task"):
        typo = {"kind": kind, "name": "celeri"}
        assert flower.post_json("/api/poison/held/begin", typo).status >= 400
        assert "celeri" in flower.post("/poison/held/begin", typo, **TOKEN).text, "a person hears of it, too"
    assert not flower.get("/api/poison/held").json
