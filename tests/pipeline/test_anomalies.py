"""Anomalies: what was planted into a history is what stands out (NEW-7). No Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("scipy")

from celery_poison.pipeline.anomalies import TIMES, anomalies
from celery_poison.pipeline.blame import blame
from celery_poison.pipeline.window import Window
from tests.pipeline import tallied
from tests.pipeline.entries import died, ran

DAY = 86_400.0


def _found(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["kind"], row["key"]): row for row in rows}


def test_planted_slow_recoveries_stand_out(history: Path) -> None:
    ask = tallied.history(history)
    found = _found(anomalies(ask))
    assert not found, "everything is compared with what was before"
    # Recoveries take six times as long at the end as at the start.
    days = ask("select min(date) as first from {incidents}")["first"][0].as_py()
    window = Window(days + timedelta(4))
    (row, *_) = (row for row in anomalies(ask, (), window) if row["kind"] == "recovery")
    assert row["times"] >= TIMES
    assert row["says"] == f"milliseconds, since {window.since} against before"


def test_a_planted_release_stands_out_against_the_time_before_it_and_its_hosts_do_not(history: Path) -> None:
    from examples.histories.world import BAD_RELEASE, World

    task, number = BAD_RELEASE
    world = World(attempts=40_000, days=8, deploy_every_days=1)
    window = Window.of(f"{world.start.year}-01-{world.start.day + number:02}", None, None)
    ask = tallied.history(history)
    found = _found(anomalies(ask, blame(ask, window), window))
    key = ("deaths", f"task_release {task} @ {world.releases[number]}")
    assert found[key]["says"].endswith("expected; it did not run before")
    assert not [key for kind, key in found if kind == "deaths" and key.startswith(("host", "queue"))]


def test_a_window_is_compared_with_what_came_before_it() -> None:
    start = Window.of("2026-03-12", None, None)
    told = [
        *(ran(f"c{n}", f"c{n}", n * DAY / 5, ms=60_000, payload_bytes=1000) for n in range(100)),
        *(ran(f"d{n}", f"d{n}", n * DAY / 5, ms=60_000, task="t.poison") for n in range(100)),
        *(died(f"a{n}", f"a{n}", (11 + n / 2) * DAY, payload_bytes=9000, task="t.calm") for n in range(12)),
        died("b", "b0", 2 * DAY, task="t.calm"),
    ]
    ask = tallied.entries(told)
    found = _found(anomalies(ask, blame(ask, start), start))
    assert found["deaths", "task t.calm"]["says"].startswith("12 deaths, 1.1 at its rate before")
    assert not [key for kind, key in found if kind == "deaths" and "t.calm" not in key]
    assert [row["kind"] for row in anomalies(ask, (), Window.of(None, "2026-03-04", None))] == []
