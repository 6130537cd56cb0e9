"""The core does its work without any extension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_poison import extension
from tests.extensions.bare import NOWHERE, BareFleet


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_poison_is_quarantined_and_everything_else_done_by_a_core_without_extensions(
    assemble: Callable[..., Any], broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "EXTENSIONS", NOWHERE)
    fleet = assemble(
        BareFleet, broker_url, poison_on_quarantine="fleet.healthy", poison_notify="tests.nobody:hears"
    )
    poisons = {fleet.send("segfault").id, fleet.send("kill_group").id}
    for n in range(20):
        fleet.send("healthy", n)
    with fleet.supervise(2):
        fleet.await_that(lambda: len(fleet.marks.count("healthy", "end")) == 20, "all is done")
        fleet.await_that(lambda: {each.id for each in fleet.quarantine.list()} == poisons, "quarantined")
        (first, _) = fleet.quarantine.list()
        (outcome,) = fleet.quarantine.discard([first.mid], actor="ann")
        assert outcome.done, outcome.error
    ledger = fleet.quarantine.queries._client
    assert not [key for key in ledger.keys("*") if b"owed" in key or b"notified" in key]
