"""Flower's pages without extensions: nothing is offered that is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_poison import extensions
from celery_poison.flower import extension_parts, handlers
from tests.extensions.bare import fleet_with
from tests.flower.conftest import Serve
from tests.flower.served import ANN

#: Room -> what only it brings to Flower.
BROUGHT = {
    "repro": {"/poison/repro/(.+)$"},
    "proposals": {
        "/poison/proposal/(apply|dismiss)$",
        "/api/poison/proposal$",
        "/api/poison/proposal/(apply|dismiss)$",
    },
    "holds by_value outbox": {
        "/poison/held/resume$",
        "/poison/held/begin$",
        "/api/poison/held$",
        "/api/poison/held/resume$",
        "/api/poison/held/begin$",
    },
}


@pytest.mark.parametrize("rooms", BROUGHT)
def test_what_an_extension_brings_to_flower_goes_with_it(monkeypatch: pytest.MonkeyPatch, rooms: str) -> None:
    offered = _routes()
    assert BROUGHT[rooms] <= offered
    left = tuple(each for each in extensions.ORDER if each not in rooms.split())
    monkeypatch.setattr(extensions, "ORDER", left)
    assert offered - _routes() == BROUGHT[rooms]


def test_of_two_extensions_that_hold_something_back_the_one_that_stays_offers_its_kinds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extensions, "ORDER", ("outbox",))
    assert [*extension_parts.union(lambda part: part.holds)] == [
        "sending"
    ] and "/poison/held/begin$" in _routes()


def _routes() -> set[Any]:
    return {each.regex.pattern for each in handlers()}


@pytest.mark.matrix
def test_pages_offer_nothing_of_extensions_that_are_left_out(
    assemble: Callable[..., Any], new_redis_url: Callable[[], str], serve: Serve
) -> None:
    fleet = assemble(fleet_with(()), new_redis_url())
    sent = fleet.send("segfault")
    with fleet.supervise(1):
        fleet.await_that(lambda: [each.id for each in fleet.quarantine.list()] == [sent.id], "quarantined")
    flower = serve(of=fleet, user=ANN)
    (kept,) = fleet.quarantine.list()
    message = flower.get(f"/poison/message/{kept.mid}").text
    assert "Raw body" in message and "Failing test" not in message
    listed = flower.get("/poison").text
    assert kept.id in listed and "Hold something back" not in listed
    blocking = flower.get("/poison/block").text
    assert 'name="fingerprint"' in blocking and "outbox" not in blocking
    refused = flower.post_json("/api/poison/block", {"kind": "sending", "name": "mail"})
    assert refused.status == 400 and "sending" not in refused.json["error"]
    for left_out in (f"repro/{kept.mid}", "held/resume", "held/begin", "proposal/apply"):
        assert flower.get(f"/poison/{left_out}").status == 404, left_out
    for left_out in ("held", "proposal"):
        assert flower.get(f"/api/poison/{left_out}").status == 404, left_out
