"""Whole workers killed from outside, one after the other, while innocents run: real workers, both brokers."""

from __future__ import annotations

import sys

import pytest

from tests.docs.pages import ROOT
from tests.harness.servers import RabbitServer
from tests.services import need

sys.path.insert(0, str(ROOT / "benchmarks"))

from outsiders import SETUPS, parse, play

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("setup", SETUPS)
def test_NEW_1_six_workers_killed_from_outside_one_after_the_other_convict_no_innocent(setup: str) -> None:
    need(setup == "redis" or RabbitServer.available(), "RabbitMQ")
    found = play(SETUPS[setup], parse(["--tasks", "180"]))  # so many that some run at each kill
    assert found["deaths"] == 6
    assert found["most_runs"] > 1, "some were cut off"
    assert not found["convicted"] and not found["unfinished"], found
