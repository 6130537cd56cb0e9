"""The back-test's replay: small histories whose outcome can be told by hand (NEW-7)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("scipy")

import numpy as np

from celery_poison.pipeline.backtest import AS_IT_WAS, GRID, gained, past, recommend, say
from celery_poison.pipeline.replay import InForce, Policy, PolicyCost, Step, replay, timeline
from celery_poison.pipeline.tables.attempts import LONGEST_MS
from tests.pipeline import tallied
from tests.pipeline.entries import START, cleared, died, ran

DAY_MS = 86_400_000
DAY = START.date()


def _at(ms: int) -> datetime:
    return START + timedelta(milliseconds=ms)


def _died(id: str, at: int, **more: object) -> Step:
    told = {"blame": "exact", "proof": "proven", "death": f"{id}{at}", "cause": "signal:9", "runtime_ms": 10}
    return Step(id, _at(at - 10), _at(at), "crashed", **{**told, **more})  # type: ignore[arg-type]


def _alive(id: str, at: int, **more: object) -> Step:
    return Step(id, _at(at - 10), _at(at), "alive", **more)  # type: ignore[arg-type]


def test_a_culprit_dies_as_often_as_the_policy_allows_whatever_history_allowed() -> None:
    history = [_died("a", 100), _died("a", 200)]
    for most in (1, 2, 3, 7):
        [told] = replay(history, [{"max_crashes": most}])
        assert (told.deaths, told.lost_ms, told.waiting, told.innocents) == (most, 10 * most, 1, 0)


def test_whom_history_saw_ending_alive_later_is_an_innocent() -> None:
    history = [_died("a", 100), _alive("a", 200)]
    strict, patient = replay(history, [{"max_crashes": 1}, {"max_crashes": 2}])
    assert (strict.deaths, strict.waiting, strict.innocents) == (1, 1, 1)
    assert (patient.deaths, patient.waiting, patient.innocents) == (1, 0, 0)


def _incident() -> list[Step]:
    shared = {"blame": "shared", "death": "i1", "in_incident": True}
    return [
        _died("guilty", 100, **shared),
        _died("calm", 101, **shared, proof="cleared"),
        _alive("calm", 150),
        _died("guilty", 200),
    ]


def test_trials_spare_the_bystander_and_the_second_worker() -> None:
    [told] = replay(_incident(), [{}])
    assert (told.deaths, told.worker_deaths, told.waiting, told.innocents) == (2, 1, 1, 0)


def test_an_incident_does_not_happen_when_its_culprit_is_in_quarantine_already() -> None:
    history = [_died("guilty", 50), *_incident()]
    [told] = replay(history, [{"max_crashes": 1}])
    assert (told.deaths, told.worker_deaths, told.waiting, told.innocents) == (1, 0, 1, 0)


def test_a_blocked_fingerprint_spares_later_deaths_and_wrongs_later_innocents() -> None:
    history = [
        _died("a", 100, fingerprint="f"),
        _died("a", 110, fingerprint="f"),
        _died("b", 200, fingerprint="f"),
        _died("b", 210, fingerprint="f"),
        _alive("c", 300, fingerprint="f"),
        _alive("d", 50, fingerprint="f"),
    ]
    history.sort(key=lambda step: step.ended)
    free, blocked = replay(history, [{}, {"block_fingerprint_after": 1}])
    assert (free.deaths, free.waiting, free.innocents, free.wrong_blocks) == (4, 2, 0, set())
    assert (blocked.deaths, blocked.waiting, blocked.caught) == (2, 3, {"f": 2})
    assert (blocked.innocents, blocked.wrong_blocks) == (1, {"f"})


def test_failures_are_judged_as_workers_judge_them() -> None:
    back = [Step("a", _at(n), _at(n + 1), "rolled_back") for n in range(4)]
    assert [told.waiting for told in replay(back, [{"max_failures": 3}, {"max_failures": 5}])] == [1, 0]


def _recommended(steps: list[Step], *grid: Policy, days: range = range(0)) -> tuple[PolicyCost, list[str]]:
    on = [DAY + timedelta(day) for day in days]
    return recommend(replay(steps, grid), on)


def test_the_recommended_policy_is_the_cheapest_and_its_costs_are_said() -> None:
    history = [step for n in range(5) for step in (_died(f"x{n}", n * 100), _alive(f"x{n}", n * 100 + 50))]
    history += [step for n in range(3) for step in (_died(f"y{n}", 1000 + n), _died(f"y{n}", 1010 + n))]
    history.sort(key=lambda step: step.ended)
    best, reasons = _recommended(history, *({"max_crashes": n} for n in (1, 3)), AS_IT_WAS)
    assert best.policy == AS_IT_WAS
    assert reasons == [
        "11 deaths, 0 innocents in quarantine, 3 messages waiting; an innocent weighs as much as 10 deaths"
    ]
    assert say({"max_crashes": 3, "block_fingerprint_after": 1}) == "max_crashes=3 block_fingerprint_after=1"


def _changed(at: int, note: str, task: str = "*") -> tuple[datetime, str, str]:
    return _at(at), task, note


def test_each_moment_is_judged_by_the_policy_that_was_in_force_for_its_task() -> None:
    told = timeline(
        [
            _changed(10, "set max_crashes=5 max_payload_bytes=1000: a bad night"),
            _changed(20, "set max_crashes=1", "t.pay"),
            _changed(30, "unset max_crashes"),
            _changed(40, "set block_fingerprint_after=1 unheard_of=7: proposal 3"),
            _changed(50, "as it was before: the pipeline took it back"),
            _changed(60, "unset everything: enough"),
        ],
        InForce(max_failures=9),
    )

    def at(ms: int, task: str) -> InForce:
        return told(_at(ms), task)

    assert at(9, "t") == InForce(max_failures=9)
    assert at(10, "t") == InForce(5, 9)
    assert (at(25, "t").max_crashes, at(25, "t.pay").max_crashes) == (5, 1)
    assert (at(35, "t").max_crashes, at(35, "t.pay").max_crashes) == (2, 1)
    assert at(45, "t") == InForce(2, 9, 1)
    assert at(55, "t") == InForce(2, 9)
    assert at(65, "t") == InForce(max_failures=9)
    assert timeline([_changed(1, "set max_crashes=3 block_fingerprint_after=none")])(_at(2), "t") == InForce(
        3
    )


def test_as_it_was_follows_the_changes_and_every_other_policy_changes_only_what_it_names() -> None:
    history = [_died("a", 100), _died("a", 200), _died("b", 1100), _died("b", 1200)]
    in_force = timeline([_changed(1000, "set max_crashes=1")])
    history = [step._replace(in_force=in_force(step.ended, "t")) for step in history]
    told = {say(outcome.policy): outcome.deaths for outcome in replay(history, GRID)}
    assert told["as it is"] == 3, "two of the first message, and one of the second"
    assert (told["max_crashes=3"], told["max_failures=2"]) == (6, 3)


def _week(day: int, *, alike: bool) -> list[Step]:
    """A day with ten messages that always die; ``alike``: and innocents whom one death would send away."""
    start = day * DAY_MS
    steps = [_died(f"{day}.{n}", start + 100 * n + k) for n in range(10) for k in (1, 50)]
    if alike:
        steps += [
            s
            for n in range(5)
            for s in (_died(f"{day}i{n}", start + 5000 + n), _alive(f"{day}i{n}", start + 6000))
        ]
    return sorted(steps, key=lambda step: step.ended)


def test_what_the_first_days_choose_must_hold_on_days_that_chose_nothing() -> None:
    days = range(100, 120)
    same = [step for day in days for step in _week(day, alike=False)]
    grid = [AS_IT_WAS, {"max_crashes": 1}]
    best, reasons = _recommended(same, *grid, days=days)
    assert best.policy == {"max_crashes": 1}
    assert "on the 6 days held out, max_crashes=1 saves 60 (60 to 60) deaths or their like" in reasons
    turned = [step for day in days for step in _week(day, alike=day >= 114)]
    best, reasons = _recommended(turned, *grid, days=days)
    assert best.policy == AS_IT_WAS
    assert "that may be chance, so nothing is to be changed" in reasons[-1]
    _, reasons = _recommended(same, *grid, days=range(100, 103))
    assert reasons[-1].startswith("only 3 days of history: no days were held out")


def test_the_interval_of_what_is_gained_is_about_as_wide_as_its_days_differ() -> None:
    by_day = np.random.default_rng(2).normal(10, 5, 400)
    gain, low, high = gained(by_day)
    half = 1.96 * 5 * 400**0.5
    assert gain == pytest.approx(by_day.sum())
    assert high - gain == pytest.approx(half, rel=0.15)
    assert gain - low == pytest.approx(half, rel=0.15)


def test_the_past_is_what_a_policy_can_treat_differently_with_the_changes_of_it() -> None:
    told = [
        ran("calm", "c1", 1),
        ran("large", "l1", 2, payload_bytes=20_000_000),
        died("a", "a1", 10, "shared", incident="i1", fingerprint="f" * 16, cause="worker_lost"),
        died("b", "b1", 10, "shared", incident="i1"),
        ran("b", "b2", 20, ms=500),
        cleared("b", "b2", 21),
        died("a", "a2", 30, crashes=2, fingerprint="f" * 16),
        ran("like", "k1", 40, fingerprint="f" * 16),
        {"event": "policy_changed", "task": "*", "note": "set max_crashes=3", "s": 15},
    ]
    steps, days, now = past(tallied.entries(told))
    assert [(step.id, step.end, step.proof) for step in steps] == [
        ("a", "crashed", "proven"),
        ("b", "crashed", "cleared"),
        ("b", "alive", ""),
        ("a", "crashed", "proven"),
        ("like", "alive", ""),
    ]
    assert (steps[2].started, steps[2].ended) == (_at(19_500), _at(20_000))
    assert [step.in_force.max_crashes for step in steps] == [2, 2, 3, 3, 3]
    assert now == InForce(max_crashes=3)
    assert days == [DAY]


def test_one_run_time_that_cannot_be_true_changes_no_back_test() -> None:
    def told(ms: int) -> list[int]:
        steps, _, _ = past(tallied.entries([died("a", "a1", 10, ms=ms), ran("a", "a2", 20, ms)]))
        return [step.runtime_ms for step in steps]

    assert told(2**63 - 1) == told(LONGEST_MS) == [LONGEST_MS] * 2
    assert told(-5) == [0, 0]
