"""The model of deaths: planted truths, and independent computations (NEW-7).

No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

pytest.importorskip("scipy")

import numpy as np

from celery_poison.pipeline import death_model, dispersion

TASKS, HOSTS = ("mail", "pdf", "ocr", "ping", "sync", "geo"), ("a", "b", "c", "d")


def _cells(
    rate: Callable[[str, str], float],
    seconds: Callable[[str, str], float] = lambda task, host: 50_000.0,
    seed: int = 3,
) -> death_model.RunGroups:
    """Runs of each task on each host, with deaths drawn at ``rate`` for a second."""
    pairs = [pair for pair in product(TASKS, HOSTS) if seconds(*pair)]
    time = np.array([seconds(*pair) for pair in pairs])
    deaths = np.random.default_rng(seed).poisson(time * [rate(*pair) for pair in pairs]).astype(float)
    task = np.array([TASKS.index(name) for name, _ in pairs])
    return death_model.RunGroups(
        deaths, time, time / 10, task, {"host": np.array([HOSTS.index(host) for _, host in pairs])}
    )


def _suspicious(cells: death_model.RunGroups) -> set[tuple[str, str]]:
    names = {"task": TASKS, "host": HOSTS}
    return {
        (told.dimension, names[told.dimension][told.code])
        for told in death_model.judge(cells)
        if told.explains
    }


def test_a_bad_task_on_one_host_only_does_not_colour_the_host() -> None:
    """Planted confounding: ten times as many deaths on that host, and all of them one task's."""
    bad = _cells(
        lambda task, host: 100e-5 if task == "ocr" else 3e-5,
        lambda task, host: 0.0 if task == "ocr" and host != "b" else 50_000.0,
    )
    of_host = np.bincount(bad.codes["host"], bad.deaths)
    assert of_host[1] > 4 * of_host[[0, 2, 3]].max(), "by its counts alone the host stands out"
    assert _suspicious(bad) == {("task", "ocr")}


def test_a_bad_host_does_not_colour_the_tasks_that_run_there() -> None:
    assert _suspicious(_cells(lambda task, host: 12e-5 if host == "c" else 2e-5)) == {("host", "c")}


def test_tasks_that_die_more_often_by_nature_do_not_colour_the_host_that_they_share() -> None:
    """A host for the harder half of the tasks: none of them is bad enough to stand out, all together are."""
    hard = TASKS[:3]
    cells = _cells(
        lambda task, host: 2.2e-5 if task in hard else 1.2e-5,
        lambda task, host: 200_000.0 if (task in hard) == (host == "a") else 0.0,
        seed=5,
    )
    assert ("host", "a") not in _suspicious(cells)


def test_where_nothing_is_planted_hardly_anything_is_suspected() -> None:
    found = [_suspicious(_cells(lambda task, host: 4e-5, seed=seed)) for seed in range(100)]
    # Two families of hypotheses, a twentieth each: ten of a hundred, and chance on top of that.
    assert sum(map(bool, found)) <= 16


def _releases(rate: Callable[[Any], Any], seed: int, *, days: int = 30, of: int = 3) -> set[int]:
    """Which releases are suspected; each is in force for ``of`` days. ``rate``: deaths of a task in a day."""
    day, task = (each.ravel().astype(float) for each in np.meshgrid(np.arange(days), np.arange(8)))
    deaths = np.random.default_rng(seed).poisson(rate(day)).astype(float)
    time, release = np.full(len(day), 1000.0), day.astype(int) // of
    cells = death_model.RunGroups(
        deaths, time, time, task.astype(int), {"release": release}, siblings=("release",), days=day
    )
    return {told.code for told in death_model.judge(cells) if told.dimension == "release" and told.explains}


def test_NEW_22_growing_risk_accuses_no_release_and_a_step_is_no_growth() -> None:
    growing = [_releases(lambda day: 1.5 * (1 + day / 29), seed, of=20) for seed in range(12)]
    assert sum(map(bool, growing)) <= 1
    # In force to the end, so that a trend alone would explain most of it; by itself, and beside growth.
    for seed in range(3):
        assert _releases(lambda day: np.where(day < 20, 2, 6), seed, of=20) == {1}
        assert _releases(lambda day: (1 + day / 29) * np.where(day < 20, 2, 6), seed, of=20) == {1}


def test_NEW_22_two_days_have_no_trend() -> None:
    assert _releases(lambda day: np.where(day < 1, 3, 12), 1, days=2, of=1) == {1}


def test_deaths_without_run_time_and_run_time_without_deaths_give_finite_figures() -> None:
    """Separation: a host where everything died at once, beside hosts where nothing ever did."""
    cells = death_model.RunGroups(
        deaths=np.array([7.0, 0.0, 0.0, 1.0]),
        seconds=np.array([0.0, 1e6, 1e6, 1e3]),
        starts=np.array([7.0, 1e5, 1e5, 1e2]),
        task=np.array([0, 0, 1, -1]),
        codes={"host": np.array([0, 1, 1, 2])},
    )
    told = {(each.dimension, each.code): each for each in death_model.judge(cells)}
    assert told["host", 0].explains and told["host", 0].p < 1e-6
    for each in told.values():
        assert np.isfinite([each.deaths, each.expected, each.p, each.q, each.low]).all()
    nothing = death_model.RunGroups(
        np.zeros(2), np.ones(2), np.ones(2), np.array([0, 1]), {"host": np.array([0, 1])}
    )
    assert death_model.judge(nothing) == []


def test_a_single_death_accuses_nobody_however_unlikely_it_was() -> None:
    cells = _cells(lambda task, host: 0.0)
    cells.deaths[5] = 1.0
    assert _suspicious(cells) == set()


def test_what_a_part_of_a_task_explains_is_not_held_against_the_rest_of_it() -> None:
    """One fingerprint of `pdf` is deadly: beside it the task is as the others, which is said."""
    calm = _cells(lambda task, host: 2e-5)
    cells = death_model.RunGroups(
        np.append(calm.deaths, 30.0),
        np.append(calm.seconds, 60.0),
        np.append(calm.starts, 30.0),
        np.append(calm.task, TASKS.index("pdf")),
        {"fingerprint": np.append(np.full(len(calm.task), -1), 0)},
        seen={"fingerprint": 1_000_000},
        parts=("fingerprint",),
    )
    told = {(each.dimension, each.code): each for each in death_model.judge(cells)}
    assert told["fingerprint", 0].explains
    pdf = told["task", TASKS.index("pdf")]
    assert (pdf.explains, pdf.elsewhere) == (False, 30.0)


def test_the_fit_is_that_of_an_independent_poisson_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """`statsmodels` maximises the same likelihood in one go; the prior is two rows of half a death each.

    Its slope is not held near 0.
    """
    glm = pytest.importorskip("statsmodels.genmod.generalized_linear_model")
    families = pytest.importorskip("statsmodels.genmod.families")
    cells = _cells(lambda task, host: (3 if task == "pdf" else 1) * (8e-5 if host == "c" else 2e-5))
    days = np.arange(len(cells.task)) * 7.0 % 29
    cells = replace(cells, days=days)
    monkeypatch.setattr(dispersion, "SLOW", 100.0)
    fitted = death_model._Model(cells, cells.seconds)
    fitted.grow()
    assert [*np.flatnonzero(fitted.dimensions["host"].inside)] == [2]
    tasks = np.eye(len(TASKS))
    design = np.column_stack([np.ones(len(cells.task)), tasks[cells.task], cells.codes["host"] == 2, days])
    prior = np.column_stack([np.zeros(len(TASKS)), tasks, np.zeros((len(TASKS), 2))])
    half = np.full(len(TASKS), death_model.PRIOR)
    told = glm.GLM(
        np.append(cells.deaths, half),
        np.vstack([design, prior]),
        family=families.Poisson(),
        exposure=np.append(cells.seconds, half),
    ).fit(tol=1e-12)
    theirs = np.exp(design @ told.params) * cells.seconds
    assert fitted.mean == pytest.approx(theirs, rel=1e-3)
    assert fitted.dimensions["host"].times[2] == pytest.approx(np.exp(told.params[-2]), rel=1e-3)
    assert fitted._trend.slope == pytest.approx(told.params[-1], rel=1e-3)


def test_chances_and_intervals_are_the_exact_ones() -> None:
    stats: Any = pytest.importorskip("scipy.stats")
    deaths, expected = np.array([0.0, 1.0, 4.0, 90.0]), np.array([2.0, 0.01, 5.5, 40.0])
    of = np.array([90.0, 50.0, 200.0, 90.0])
    assert death_model.chance(deaths, expected, of) == pytest.approx(
        stats.binom.sf(deaths - 1, of, expected / of)
    )
    low, high = death_model.interval(deaths, expected)
    assert low[1:] == pytest.approx(stats.chi2.ppf(0.025, 2 * deaths[1:]) / 2 / expected[1:])
    assert low[0] == 0 and high == pytest.approx(stats.chi2.ppf(0.975, 2 * deaths + 2) / 2 / expected)
    change = death_model.chance_of_change(6, 10, 3, 90)
    assert change == pytest.approx(stats.binom.sf(5, 9, 0.1))
    assert death_model.chance_of_change(6, 10, 0, 0) is None


@pytest.mark.parametrize("unseen", [0, 9_000])
def test_false_discovery_rates_are_those_of_benjamini_and_hochberg(unseen: int) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.random.default_rng(1).random(50) ** 4
    theirs: Mapping[int, Any] = multitest.multipletests(np.append(p, np.ones(unseen)), method="fdr_bh")
    assert death_model.q_values(p, 50 + unseen) == pytest.approx(theirs[1][:50])


def test_how_an_element_is_numbered_says_nothing_about_how_many_there_are() -> None:
    """Those of other windows have numbers, too."""
    cells = _cells(lambda task, host: 6e-5 if host == "c" else 3e-5)
    others = replace(cells, codes={"host": cells.codes["host"] * 7 + 20})
    rates = [
        [told.q for told in death_model.judge(each) if told.dimension == "host"] for each in (cells, others)
    ]
    assert rates[0] == rates[1] and min(rates[0]) < 1
