"""The back-test's replay: small histories whose outcome can be told by hand (NEW-7)."""

from __future__ import annotations

from celery_poison.pipeline.backtest.grid import recommend, run, say
from celery_poison.pipeline.backtest.replay import Policy, Step, replay


def _died(id: str, at: int, **more: object) -> Step:
    told = {"blame": "exact", "proof": "proven", "death": f"{id}{at}", "cause": "signal:9", "runtime_ms": 10}
    return Step(id, at - 10, at, "crashed", **{**told, **more})  # type: ignore[arg-type]


def _alive(id: str, at: int, **more: object) -> Step:
    return Step(id, at - 10, at, "alive", **more)  # type: ignore[arg-type]


def test_a_culprit_dies_as_often_as_the_policy_allows_whatever_history_allowed() -> None:
    history = [_died("a", 100), _died("a", 200)]
    for most in (1, 2, 3, 7):
        told = replay(history, Policy(max_crashes=most))
        assert (told.deaths, told.lost_ms, told.waiting, told.innocents) == (most, 10 * most, 1, 0)


def test_whom_history_saw_ending_alive_later_is_an_innocent() -> None:
    history = [_died("a", 100), _alive("a", 200)]
    strict, patient = replay(history, Policy(max_crashes=1)), replay(history, Policy(max_crashes=2))
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
    tried, untried = (replay(_incident(), Policy(trial=trial)) for trial in (True, False))
    assert (tried.deaths, tried.worker_deaths, tried.waiting, tried.innocents) == (2, 1, 1, 0)
    assert (untried.deaths, untried.worker_deaths, untried.waiting, untried.innocents) == (2, 2, 2, 1)


def test_an_incident_does_not_happen_when_its_culprit_is_in_quarantine_already() -> None:
    history = [_died("guilty", 50), *_incident()]
    told = replay(history, Policy(max_crashes=1))
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
    free = replay(history, Policy())
    blocked = replay(history, Policy(block_fingerprint_after=1))
    assert (free.deaths, free.waiting, free.innocents, free.wrong_blocks) == (4, 2, 0, set())
    assert (blocked.deaths, blocked.waiting, blocked.blocked) == (2, 3, 2)
    assert (blocked.innocents, blocked.wrong_blocks) == (1, {"f"})


def test_failures_and_sizes_are_judged_as_workers_judge_them() -> None:
    back = [Step("a", n, n + 1, "rolled_back") for n in range(4)]
    assert replay(back, Policy(max_failures=3)).waiting == 1
    assert replay(back, Policy(max_failures=5)).waiting == 0
    large = [_alive("big", 10, payload_bytes=2_000)]
    told = replay(large, Policy(max_payload_bytes=1_000), {1_000: 5})
    assert (told.waiting, told.innocents, told.deaths) == (6, 6, 0)


def test_the_recommended_policy_is_the_cheapest_and_says_what_others_would_cost() -> None:
    history = [step for n in range(5) for step in (_died(f"x{n}", n * 100), _alive(f"x{n}", n * 100 + 50))]
    history += [step for n in range(3) for step in (_died(f"y{n}", 1000 + n), _died(f"y{n}", 1010 + n))]
    history.sort(key=lambda step: step.ended)
    told = recommend(run(history, [Policy(max_crashes=n) for n in (1, 2, 3)]))
    assert told is not None and told.policy == Policy(max_crashes=2)
    assert any("max_crashes=1 saves 3 deaths and costs 5 innocents" in reason for reason in told.reasons)
    assert say(Policy(max_crashes=3, trial=False)) == "max_crashes=3 trial=off"
    assert recommend([]) is None
