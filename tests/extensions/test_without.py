"""The core does its work without extensions.

``core.txt`` lists tests of the core that pass without any: ``tox -e bare``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_poison import extensions
from celery_poison.extensions import ORDER
from tests import sampled
from tests.extensions.bare import fleet_with

ONE_LEFT_OUT = [("redis", tuple(each for each in ORDER if each != name)) for name in ORDER]


@pytest.mark.parametrize(
    ("broker_url", "kept"),
    sampled([("redis", ())], [("rabbitmq", ()), *ONE_LEFT_OUT]),
    indirect=["broker_url"],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "none",
)
def test_poison_is_quarantined_and_everything_else_done_without_extensions(
    assemble: Callable[..., Any], broker_url: str, kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "ORDER", kept)
    settings = {"poison_notify": "tests.nobody:hears"} if "notify" in kept else {}
    settings |= {"poison_on_quarantine": "fleet.healthy"} if "error_transactions" in kept else {}
    fleet = assemble(fleet_with(kept), broker_url, **settings)
    poisons = {fleet.send("segfault").id, fleet.send("kill_group").id}
    for n in range(20):
        fleet.send("healthy", n)
    with fleet.supervise(2):
        fleet.await_that(lambda: _numbers_of_the_ended(fleet) == {*range(20)}, "all is done")
        fleet.await_that(lambda: {each.id for each in fleet.quarantine.list()} == poisons, "quarantined")
        (first, _) = fleet.quarantine.list()
        (outcome,) = fleet.quarantine.discard([first.mid], actor="ann")
        assert outcome.done, outcome.error
    keys = fleet.quarantine.queries._client.keys("*")
    assert any(b"owed" in key for key in keys) <= ("error_transactions" in kept)
    assert any(b"notified" in key for key in keys) <= ("notify" in kept)


def _numbers_of_the_ended(fleet: Any) -> set[int]:
    """Without the error transactions', which hand a report to the same task."""
    return {mark.n for mark in fleet.marks.all("healthy", "end") if isinstance(mark.n, int)}
