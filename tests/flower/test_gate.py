"""The fleet gate in Flower: shown loudly while it is closed, and lifted by who may act (NEW-1)."""

from __future__ import annotations

from celery_poison import Quarantine
from celery_poison.ledger.fleet import GateLimits, Silence
from celery_poison.plugin import plugin_of
from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN

TOKEN = {"Cookie": "_xsrf=0123456789abcdef", "X_XSRFToken": "0123456789abcdef"}
LIFT = 'action="/poison/gate/lift"'


def close_gate(fleet: Fleet) -> None:
    ledger = plugin_of(fleet.app).open_ledger()
    led = ledger.fleet.lead("monitor", 60_000)
    assert led is not None
    for n in range(3):
        ledger.fleet.beat(f"w{n}/b", {"node": "n"}, first=True)
        ledger.client.hset(ledger.keys.worker(f"w{n}/b"), "since", 1)
    for n in range(3):
        ledger.fleet.declare_dead(f"w{n}/b", f"i{n}", Silence.SILENT, 0, led[0], GateLimits(0.5, 3, 60_000))


def test_NEW_1_a_closed_gate_is_shown_and_lifted_in_the_name_of_the_user(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    flower = serve(user=ANN)
    shown = flower.get("/poison").text
    assert ">open</p>" in shown and LIFT not in shown
    close_gate(fleet)
    wait_until(lambda: ">closed</p>" in flower.get("/poison").text, what="the card says closed")
    shown = flower.get("/poison").text
    assert "The fleet gate is closed: 3 of 3 workers died" in shown and LIFT in shown
    assert flower.get("/api/poison/status").json["gate"]["closed"] is True
    assert flower.post("/poison/gate/lift", {"note": "the node is back"}, **TOKEN).status == 303
    wait_until(lambda: ">open</p>" in flower.get("/poison").text, what="the card says open")
    (told,) = [e for e in fleet.quarantine.queries.journal() if e["event"] == "gate_lifted"]
    assert (told["actor"], told["note"]) == ("ann (flower)", "the node is back")
    again = flower.post("/poison/gate/lift", {}, **TOKEN)
    assert again.status == 303, "somebody was quicker"


def test_NEW_1_a_program_lifts_it_and_is_told_when_it_is_open(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    flower = serve(user=ANN)
    close_gate(fleet)
    lifted = flower.post_json("/api/poison/gate/lift", {"note": "over"})
    assert (lifted.status, lifted.json["closed"], lifted.json["lifted_by"]) == (200, False, "ann (flower)")
    assert not Quarantine(fleet.app).gate().closed
    again = flower.post_json("/api/poison/gate/lift", {})
    assert (again.status, again.json["error"]) == (404, "the fleet gate is not closed")
