"""Flower schedules releases and takes them back, in the name of the user (NEW-6)."""

from __future__ import annotations

from typing import Any

from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN

TOKEN = {"Cookie": "_xsrf=0123456789abcdef", "X_XSRFToken": "0123456789abcdef"}


def test_NEW_6_a_release_is_scheduled_and_taken_back_by_form_and_by_program_in_the_name_of_the_user(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    one, two = (keeper.send_and_keep("fleet.kill_child", n) for n in range(2))
    flower = serve(user=ANN)

    def await_left(*wanted: int) -> None:
        wait_until(lambda: tuple(fleet.quarantine.get(mid).releases_left for mid in (one, two)) == wanted)

    page = f"/poison/message/{one}"
    assert "/poison/preview/schedule" in flower.get(page).text
    assert "/poison/preview/unschedule" not in flower.get(page).text, "there is nothing to take back"
    form = flower.post("/poison/preview/schedule", {"ids": one}, **TOKEN).text
    assert 'name="after"' in form and 'name="times"' in form and 'name="force"' in form
    typed: dict[str, Any] = {"ids": one, "after": "2h", "times": "3", "note": "their API is down"}
    assert flower.post("/poison/act/schedule", typed, **TOKEN).status == 303
    await_left(3, 0)
    shown = flower.get(page).text
    assert "3 times at most, as ann (flower) has scheduled (their API is down)" in shown
    assert "/poison/preview/unschedule" in shown

    done = flower.post_json("/api/poison/act/schedule", {"ids": [two], "after": "90s"}).json
    assert (done["done"], done["refused"]) == (1, 0)
    await_left(3, 1)
    record = fleet.quarantine.get(two)
    assert record.retry_at and record.quarantined_at and record.retry_at > record.quarantined_at + 80

    assert flower.post("/poison/act/unschedule", {"ids": one, "note": "it is up"}, **TOKEN).status == 303
    again = flower.post_json("/api/poison/act/unschedule", {"ids": [one, two]}).json
    assert (again["done"], again["refused"]) == (1, 1)
    assert again["refusals"][0]["error"] == "no release of the message is scheduled"
    await_left(0, 0)
    told = fleet.events("release_scheduled", "release_unscheduled")
    assert [entry["actor"] for entry in told] == ["ann (flower)"] * 4


def test_NEW_6_a_release_keeps_the_counts_where_it_is_asked_to(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    one, two, three = (keeper.send_and_keep("fleet.kill_child", n) for n in range(3))
    flower = serve(user=ANN)
    assert 'name="keep_counts"' in flower.post("/poison/preview/release", {"ids": one}, **TOKEN).text
    flower.post("/poison/act/release", {"ids": one, "keep_counts": "1"}, **TOKEN)
    flower.post_json("/api/poison/act/release", {"ids": [two], "keep_counts": True})
    flower.post_json("/api/poison/act/release", {"ids": [three]})
    wait_until(lambda: [fleet.quarantine.get(mid).strikes for mid in (one, two, three)] == [2, 2, 0])


def test_NEW_6_what_is_no_time_and_no_number_schedules_nothing(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    mid = keeper.send_and_keep("fleet.kill_child")
    flower = serve(user=ANN)
    wrong: list[dict[str, Any]] = [{}, {"after": "soon"}, {"after": 0}, {"after": "1h", "times": "-1"}]
    for typed in (*wrong, {"after": "1h", "times": "many"}, {"after": "9" * 5000 + "h"}):
        answer = flower.post_json("/api/poison/act/schedule", {"ids": [mid], **typed})
        assert answer.status == 400, typed
        assert "write a number with" in answer.text or "above zero" in answer.text, typed
        form = flower.post("/poison/act/schedule", {"ids": mid, **typed}, **TOKEN)
        assert form.status == 400, typed
    (offered,) = [act for act in flower.get("/api/poison/actions").json["actions"] if act["asks"]]
    assert (offered["verb"], [*offered["asks"]]) == ("schedule", ["after", "times"])
    assert not fleet.quarantine.get(mid).retry_at and not fleet.events("release_scheduled")
