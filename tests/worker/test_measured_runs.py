"""What the journal's third schema knows of a run: when its message was sent, and the memory it needed."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from celery_poison.worker import high_water
from celery_poison.worker.high_water import HighWater
from tests.worker.conftest import Crew


def test_NEW_7_the_peak_of_a_run_is_its_own_and_the_time_of_sending_is_known(
    new_crew: Any, redis_url: str
) -> None:
    crew: Crew = new_crew(redis_url)
    sent = time.time() * 1000
    with crew.worker(concurrency=1):
        for megabytes in (1, 200, 1):
            crew.send("fills", megabytes).get(timeout=30)
        crew.send("fills", 2, countdown=0.1).get(timeout=30)
    first, large, small, later = crew.events("finished")
    peaks = [int(each["run_memory_kb"]) for each in (first, large, small)]
    if sys.platform == "linux":
        assert peaks[1] > peaks[0] + 190_000
        assert peaks[2] < peaks[1] - 190_000
    assert int(small["memory_kb"]) >= peaks[1]  # of the process so far
    assert sent - 1 <= int(first["enqueued_at"]) <= int(small["enqueued_at"]) <= time.time() * 1000
    assert later["enqueued_at"] == ""  # it was to wait


def test_of_runs_beside_each_other_no_peak_is_known(new_crew: Any, redis_url: str) -> None:
    crew: Crew = new_crew(redis_url)
    with crew.worker(pool="threads", concurrency=2):
        for number in (1, 2):
            crew.send("gated", number)
        crew.await_that(lambda: len(crew.marks.count("gated", "start")) == 2, "both run")
        crew.marks.open_gate()
        crew.await_that(lambda: len(crew.events("finished")) == 2, "both ended")
    assert [each["run_memory_kb"] for each in crew.events("finished")] == ["", ""]


def test_where_no_mark_is_set_back_a_peak_is_known_of_a_run_that_raised_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(high_water, "_CLEAR", "/nowhere/clear_refs")
    here = HighWater()
    mark = here.begin()
    assert mark == here.peak_kb()
    assert here.peaks_kb(mark)[1] is None
    most = len(b"x" * ((mark << 10) + (50 << 20)))
    assert (here.peaks_kb(mark)[1] or 0) > most >> 10
    assert here.peaks_kb(None)[1] is None


@pytest.mark.parametrize("header", ["1", True, -1, 10**16, None, [1], float("nan")])
def test_a_time_of_sending_that_is_none_is_left_out(header: object) -> None:
    from celery_poison.worker.recorder import Given, _measured

    assert _measured(Given("", "", {"poison_sent": header}))[1] == ""
