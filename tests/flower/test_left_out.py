"""Flower's pages without extensions: nothing is offered that is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_poison import extensions
from celery_poison.flower import handlers, parts
from tests.extensions.bare import fleet_with
from tests.flower.conftest import Serve
from tests.flower.served import ANN


def test_routes_and_downloads_of_an_extension_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "poison-repro" in _routes() and "poison-repro" in parts.downloads()
    monkeypatch.setattr(extensions, "ORDER", tuple(each for each in extensions.ORDER if each != "repro"))
    assert "poison" in _routes() and "poison-repro" not in _routes()
    assert not parts.downloads()


def _routes() -> list[Any]:
    return [getattr(each, "name", None) for each in handlers()]


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
    assert flower.get(f"/poison/repro/{kept.mid}").status == 404
    listed = flower.get("/poison").text
    assert kept.id in listed and "Hold something back" not in listed
    blocking = flower.get("/poison/block").text
    assert 'name="fingerprint"' in blocking and "outbox" not in blocking
    for route in ("block", "held/begin"):
        refused = flower.post_json(f"/api/poison/{route}", {"kind": "sending", "name": "mail"})
        assert refused.status == 400 and "sending" not in refused.json["error"]
    assert "extensions are left out" in refused.json["error"]
