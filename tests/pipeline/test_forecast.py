"""Forecasts: what is expected comes, what was planted is found, and nothing else (NEW-7). No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("scipy")

import numpy as np

from celery_poison.cli.pipeline_forecast import of_limit, of_task
from celery_poison.pipeline.forecast import Chance, forecast
from celery_poison.pipeline.tables.attempts import LONGEST_MS
from tests.pipeline import tallied
from tests.pipeline.entries import died, ran

DAY = 86_400.0


def _days(seed: int, days: int, varying: float) -> tuple[Any, Any]:
    """Runs of some days, and how many of them were above a limit: days have a rate of their own."""
    dice = np.random.default_rng(seed)
    runs = dice.poisson(dice.lognormal(5, 1), days).astype(float)
    rate = dice.uniform(0.001, 0.2)
    rates = dice.beta(rate * varying, (1 - rate) * varying, days) if varying else np.full(days, rate)
    return runs, dice.binomial(runs.astype(int), rates).astype(float)


@pytest.mark.parametrize("varying", [0, 100, 20])
def test_NEW_22_what_was_expected_of_the_days_held_out_came(varying: float) -> None:
    held = 0
    for seed in range(300):
        runs, above = _days(seed, 30, varying)
        low, high = Chance.of(runs[:-9], above[:-9]).expected(runs[-9:].sum())
        held += low <= above[-9:].sum() <= high
    assert held >= 270


def test_NEW_22_no_release_is_slower_where_none_is(history: Path) -> None:
    told = [row for limit in (1, 10) for row in forecast(tallied.history(history), "runtime", limit)]
    assert len(told) > 20
    assert [row["task"] for row in told if row["p50_times"] or row["p95_times"]] == []


def _fleet() -> list[dict[str, Any]]:
    """Ten days of a task that needs 300 MiB in one run of ten, and got twice as slow with release 2."""
    told = []
    for number in range(1000):
        release = "2" if number >= 600 else "1"
        ms = (900 + number * 37 % 200) * (2 if release == "2" else 1)
        kb = (300 if number % 10 == 0 else 100) * 1024
        more = {"run_memory_kb": kb, "payload_bytes": 500, "release": release, "deliveries": 1}
        sent = 1_772_452_800_000 + int(number / 100 * DAY * 1000) - ms - 2000
        told.append(ran(f"a{number}", f"a{number}", number / 100 * DAY, ms, enqueued_at=sent, **more))
        told.append(
            ran(f"b{number}", f"b{number}", number / 100 * DAY, 1000, task="t.other", release=release)
        )
    return told


def test_NEW_11_the_lane_for_want_of_memory_is_told_its_messages_and_their_size() -> None:
    deaths = [
        died(f"d{n}", f"d{n}", n * DAY, task="t.calm", cause="oom", memory_kb=kb * 1024, payload_bytes=500)
        for n, kb in enumerate((150, 250))
    ]
    rows = forecast(tallied.entries([*_fleet(), *deaths]), "peak", 200)
    (row,) = rows
    assert (row["task"], row["size"], row["runs"], row["above"]) == ("t.calm", "under 1 kB", 1002, 102)
    assert row["low"] < 0.1 < row["high"] < 0.13
    assert row["expected_low"] <= row["came"] <= row["expected_high"]
    assert row["most"] == pytest.approx(300, rel=0.1)
    assert "above 200: 10.18% (" in of_task(row, 200, "MiB")
    large = {**row, "p50": 1535.0, "p95": 2048.2}
    assert "half up to 1,535 MiB, 95 % up to 2,048; above 1800" in of_task(large, 1800, "MiB")
    lines = "\n".join(of_limit(rows, "peak", 200, "MiB"))
    assert "would have ended 100 runs that ended alive" in lines
    assert "1 runs ran out of memory below it" in lines
    assert 'poison_exception_destination={"oom": "bigmem"}: 9.27 messages a day, of t.calm' in lines


def test_NEW_7_what_got_slower_with_a_release_is_told_and_what_did_not_is_not() -> None:
    slower, same = sorted(forecast(tallied.entries(_fleet()), "runtime", 1.5), key=lambda row: row["task"])
    assert slower["release"] == "2"
    for rank in ("p50", "p95"):
        assert slower[f"{rank}_low"] <= 2.05 and slower[f"{rank}_high"] >= 1.9
        assert slower[f"{rank}_times"] == pytest.approx(2, rel=0.1)
    assert same["p50_times"] is same["p95_times"] is None
    assert "p95 under 2 is" in of_task(slower, 1.5, "s")
    assert "would have ended 400 runs" in "\n".join(of_limit([slower, same], "runtime", 1.5, "s"))


def test_NEW_7_a_wait_is_from_publish_to_first_start_and_latency_to_the_end() -> None:
    ask = tallied.entries(_fleet())
    (wait,), (latency,) = forecast(ask, "wait", 1), forecast(ask, "latency", 3.5)
    assert wait["p50"] == pytest.approx(2, rel=0.1) and wait["share"] == 1
    assert latency["above"] == 400  # of release 2


@pytest.mark.parametrize("measure", ["peak", "runtime", "latency"])
def test_one_run_time_that_cannot_be_true_changes_no_forecast(measure: str) -> None:
    def told(ms: int) -> list[str]:
        strange = ran("x", "x", DAY, ms, run_memory_kb=300 * 1024, payload_bytes=500, release="1")
        strange |= {"enqueued_at": 0}
        rows = forecast(tallied.entries([*_fleet(), strange]), measure, 200)
        return [*map(repr, rows), *of_limit(rows, measure, 200, "")]

    assert told(2**63 - 1) == told(LONGEST_MS)


def test_where_nothing_is_known_nothing_is_forecast() -> None:
    assert forecast(tallied.entries([ran("a", "a", 1, deliveries=1)]), "wait", 1) == []
    assert [*of_limit([], "wait", 1, "s")] == []
