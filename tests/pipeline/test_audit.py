"""False accusations are rare in every shape of history, and what is planted is found (NEW-22).

A few histories of each kind; ``benchmarks/audit.py`` judges hundreds. No Spark.
"""

from __future__ import annotations

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("scipy")

from benchmarks.audit import accused
from tests.pipeline.worlds import CULPRITS, NODE, WORLDS, Culprit


@pytest.mark.parametrize("world", WORLDS)
def test_NEW_22_a_history_without_a_culprit_accuses_nothing(world: str) -> None:
    # In the twentieth, good and bad days alone give one host twice the deaths of the others. The first bad
    # week of a host holds all of a release, which stands out until that host is left out.
    assert accused(world, seed=20 if world == "bad days of hosts" else 1) == []


@pytest.mark.parametrize("culprit", CULPRITS, ids=lambda each: each.dimension)
@pytest.mark.parametrize("world", ["risk per start", "outage of six hours"])
def test_NEW_22_a_planted_culprit_is_accused_and_nothing_else(world: str, culprit: Culprit) -> None:
    # In these the outage falls into the bad release, and by run time alone each size of the task's is bad.
    telling = {"release": 1067, "task": 1049} if world == "outage of six hours" else {}
    seed = telling.get(culprit.dimension, 1)
    assert [each[:2] for each in accused(world, seed, culprit)] == [(culprit.dimension, culprit.key)]


def test_NEW_22_a_bad_node_is_accused_though_its_pods_last_for_a_day() -> None:
    assert [each[:2] for each in accused("pods of a day", 1, NODE)] == [("node", "node-03")]
