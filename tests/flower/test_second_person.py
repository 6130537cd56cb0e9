"""In Flower, too, a second person asks for a large act; the users that log in are told apart (NEW-6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.testing import wait_until
from tests.apps.harness import Fleet
from tests.cli.conftest import Console
from tests.desk.keeping import Keeper
from tests.flower.conftest import Serve
from tests.flower.served import ANN
from tests.flower.test_scheduling import TOKEN


@pytest.fixture
def fleet(new_fleet: Callable[..., Fleet], broker_url: str) -> Fleet:
    return new_fleet(broker_url, poison_second_person=2)


def test_NEW_6_who_asked_in_flower_is_confirmed_by_another_from_the_command_line_and_the_other_way_round(
    serve: Serve, fleet: Fleet, keeper: Keeper
) -> None:
    flower, console = serve(user=ANN), Console(fleet.app)
    for _ in range(2):
        keeper.send_and_keep("fleet.healthy", 1)
    asked = flower.post_json("/api/poison/act/release", {"all": True}).json
    assert asked["state"] == "failed" and "ann (flower) has asked" in asked["error"], asked
    assert "celery poison release --all" in asked["error"]
    wait_until(
        lambda: (
            'id="poison-asked"' in (page := flower.get("/poison").text) and "asked for release --all" in page
        )
    )
    page = flower.get("/poison").text
    assert "ann (flower) asked for release --all (2 messages)" in page and "needs a second person" in page
    assert "another person does it by the same words: celery poison release --all --actor NAME" in page
    assert flower.get("/api/poison/status").json["asked"][0]["act"] == "release --all"
    assert "has asked" in console.run("release", "--all", "--yes", "--actor", "ann@desk", status=1).stderr
    console.run("release", "--all", "--yes", "--actor", "bob@desk")
    keeper.empty()

    for _ in range(2):
        keeper.send_and_keep("fleet.healthy", 1)
    console.run("release", "--filter", "task=fleet.*", "--yes", "--actor", "bob@desk", status=1)
    done = flower.post_json("/api/poison/act/release", {"filter": "task=fleet.*"}).json
    assert (done["done"], done["state"]) == (2, "done"), done
    keeper.empty()

    mids = [keeper.send_and_keep("fleet.healthy", 1) for _ in range(2)]
    answer = flower.post("/poison/act/release", {"ids": mids}, **TOKEN)
    assert answer.status == 303

    def refused() -> bool:
        return any(entry["note"].startswith("release ID...") for entry in fleet.events("act_asked_for"))

    wait_until(refused)
    assert len(fleet.quarantine.list()) == 2
