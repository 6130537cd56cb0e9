"""RabbitMQ's delivery limit counts for a whole prefetch; the guard counts for what ran."""

from __future__ import annotations

import sys

import pytest

from tests.docs.pages import ROOT
from tests.harness.servers import RabbitServer
from tests.services import need

sys.path.insert(0, str(ROOT / "benchmarks"))

from comparison import SCENARIOS, parser

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize(("setup", "innocents"), [("late", range(10, 50)), ("guarded", range(1))])
def test_a_delivery_limit_drops_innocents_that_were_only_prefetched_unless_they_are_guarded(
    setup: str, innocents: range
) -> None:
    need(RabbitServer.available(), "RabbitMQ")
    play, _ = SCENARIOS["delivery-limit"]
    seen = play(setup, parser().parse_args(["delivery-limit"]))
    assert seen["innocents_dropped"] in innocents, seen
    assert seen["innocents_done"] == 200 - seen["innocents_dropped"], seen
    assert seen["poison"] == ("dropped" if setup == "late" else "quarantined"), seen
