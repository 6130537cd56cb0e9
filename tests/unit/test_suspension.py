"""When a worker stops consuming a queue, and when it goes on: every way (WAS-6)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_poison.decide import End
from celery_poison.extensions.holds.suspension import (
    FRESH,
    PROBING,
    RUNS,
    Bounds,
    Endpoint,
    Mode,
    after_run,
    failed,
    most_suspended,
)

FAILURES = [End.RAISED, End.RETRIED, End.ROLLED_BACK, End.DIED, End.TIMED_OUT, End.NOT_REACHED]
SILENT = [end for end in End if end not in (*FAILURES, End.RETURNED)]
THREE, HALF = Bounds(in_a_row=3), Bounds(ratio=0.5)


def _after(bounds: Bounds, ends: list[End]) -> Endpoint:
    endpoint = FRESH
    for end in ends:
        endpoint = after_run(endpoint, end, bounds)
    return endpoint


@pytest.mark.parametrize("end", End)
def test_WAS_6_each_end_is_a_failure_or_a_success_or_says_nothing(end: End) -> None:
    assert failed(end) is (True if end in FAILURES else False if end is End.RETURNED else None)


@given(st.lists(st.sampled_from(End), max_size=30), st.integers(1, 6))
def test_WAS_6_so_many_failures_in_a_row_suspend_and_any_success_begins_the_count_anew(
    ends: list[End], bound: int
) -> None:
    run, suspended = 0, False
    for end in ends:
        run = run + 1 if end in FAILURES else 0 if end is End.RETURNED else run
        suspended = suspended or run >= bound
    found = _after(Bounds(in_a_row=bound), ends)
    assert (found.mode is Mode.SUSPENDED) == suspended
    if suspended:
        assert found.reason == f"{bound} failures in a row"


@given(st.lists(st.booleans(), max_size=40), st.sampled_from([0.1, 0.5, 0.75, 1.0]))
def test_WAS_6_the_ratio_is_that_of_the_last_runs_and_of_no_fewer(runs: list[bool], ratio: float) -> None:
    windows = [runs[i : i + RUNS] for i in range(len(runs) - RUNS + 1)]
    found = _after(Bounds(ratio=ratio), [End.RAISED if bad else End.RETURNED for bad in runs])
    assert (found.mode is Mode.SUSPENDED) == any(sum(window) >= ratio * RUNS for window in windows)


def test_WAS_6_without_bounds_nothing_is_suspended() -> None:
    assert _after(Bounds(), [End.DIED] * 100).mode is Mode.CONSUMING
    assert not Bounds().are_set and THREE.are_set and HALF.are_set


@pytest.mark.parametrize(("end", "probe", "bounds"), [*product(End, [True, False], [Bounds(), THREE, HALF])])
def test_WAS_6_only_the_probe_decides_after_a_suspension(end: End, probe: bool, bounds: Bounds) -> None:
    found = after_run(PROBING, end, bounds, probe=probe)
    if not probe or end in SILENT:
        assert found is PROBING
    elif end is End.RETURNED:
        assert found is FRESH
    else:
        assert found == Endpoint(Mode.SUSPENDED, reason="its probe failed")


@pytest.mark.parametrize(("end", "probe"), [*product(End, [True, False])])
def test_WAS_6_what_had_begun_before_changes_no_suspension(end: End, probe: bool) -> None:
    suspended = Endpoint(Mode.SUSPENDED, reason="x")
    assert after_run(suspended, end, THREE, probe=probe) is suspended


@pytest.mark.parametrize(
    ("consumers", "share", "most"), [(0, 0.5, 1), (1, 0.5, 1), (2, 0.5, 1), (4, 0.5, 2), (5, 0.5, 2),
                                     (4, 0, 1), (4, 1, 4), (4, 9, 36)]
)  # fmt: skip
def test_WAS_6_a_share_of_the_fleet_may_be_suspended_and_always_one(
    consumers: int, share: float, most: int
) -> None:
    assert most_suspended(consumers, share) == most
