"""Flower shows holds by value, adds and lifts them in the name of the user (NEW-27)."""

from __future__ import annotations

from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN

TOKEN = {"Cookie": "_xsrf=0123456789abcdef", "X_XSRFToken": "0123456789abcdef"}
HOSTILE = "<img src=x onerror=alert(1)>"


def test_NEW_27_a_person_holds_by_value_and_lifts_it_in_flower(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    flower = serve(user=ANN)
    new = {"kind": "value", "name": f"n='{HOSTILE}'", "note": HOSTILE}
    assert flower.post("/poison/held/begin", new).status == 403, "without its token"
    assert not fleet.quarantine.value_holds()
    assert flower.post("/poison/held/begin", new, **TOKEN).status == 303
    wait_until(lambda: len(flower.get("/api/poison/held").json) == 1, what="it is known")
    page = flower.get("/poison").text
    assert HOSTILE not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
    (row,) = flower.get("/api/poison/held").json
    assert (row["kind"], row["name"], row["by"]) == ("value", "1", "ann (flower)")
    fleet.send("healthy", 42)
    keeper.keep(keeper.receive(), "held", 0, reason=fleet.quarantine.value_holds()[0].hold.story)
    typo = flower.post_json("/api/poison/held/begin", {"kind": "value", "name": "n"})
    assert typo.status == 400 and "'n' is no condition" in typo.json["error"]
    assert flower.post_json("/api/poison/held/resume", {"kind": "value", "name": "x"}).status == 400
    gone = {"kind": "value", "name": "1"}
    assert flower.post("/poison/held/resume", gone, **TOKEN).status == 303
    wait_until(lambda: not flower.get("/api/poison/held").json, what="it is lifted")
    assert not fleet.quarantine.list() and len(keeper.raw_on_redis()) == 1
    wait_until(lambda: "celery_poison_value_holds 0.0" in flower.get("/metrics").text, what="it is counted")
