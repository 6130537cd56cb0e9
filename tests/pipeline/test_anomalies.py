"""Anomalies: what was planted into a history is what stands out (NEW-7). No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("scipy")

from celery_poison.pipeline.blame import anomalies, blame
from celery_poison.pipeline.window import Window
from tests.pipeline import tallied
from tests.pipeline.entries import died, ran

DAY = 86_400.0


def test_NEW_7_a_planted_release_stands_out_against_the_time_before_it_and_its_hosts_do_not(
    history: Path,
) -> None:
    from examples.histories.world import BAD_RELEASE, World

    task, number = BAD_RELEASE
    world = World(attempts=40_000, days=8, deploy_every_days=1)
    window = Window.of(f"{world.start.year}-01-{world.start.day + number:02}", None, None)
    ask = tallied.history(history)
    assert not anomalies(blame(ask)), "everything is compared with what was before"
    found = {(row["dimension"], row["key"]): row for row in anomalies(blame(ask, window))}
    row = found["task_release", f"{task} @ {world.releases[number]}"]
    assert row["change_p"] is None and not row["before_deaths"]
    assert not [key for key in found if key[0] in ("host", "queue")]


def test_NEW_7_a_window_is_compared_with_what_came_before_it() -> None:
    start = Window.of("2026-03-12", None, None)
    told = [
        *(ran(f"c{n}", f"c{n}", n * DAY / 5, ms=60_000, payload_bytes=1000) for n in range(100)),
        *(ran(f"d{n}", f"d{n}", n * DAY / 5, ms=60_000, task="t.poison") for n in range(100)),
        *(died(f"a{n}", f"a{n}", (11 + n / 2) * DAY, payload_bytes=9000, task="t.calm") for n in range(12)),
        died("b", "b0", 2 * DAY, task="t.calm"),
    ]
    ask = tallied.entries(told)
    found = anomalies(blame(ask, start))
    (row,) = (row for row in found if row["dimension"] == "task")
    assert row["key"] == "t.calm" and row["deaths"] == 12
    assert row["before_expected"] == pytest.approx(1.1, abs=0.05) and row["change_p"] < 0.05
    assert not [each for each in found if "t.calm" not in each["key"]]
    assert anomalies(blame(ask, Window.of(None, "2026-03-04", None))) == []
