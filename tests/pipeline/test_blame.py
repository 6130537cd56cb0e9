"""Blame: published examples, an independent computation, and histories whose truth is known (NEW-7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline import independent

#: The worked example of Jones and Harrold, "Empirical evaluation of the Tarantula automatic fault
#: localization technique", ASE 2005, figure 1: the statements of mid(), which of six tests run them, and its
#: suspiciousness.
#: The last test fails; statement 7 is the fault.
MID = {
    1: ("111111", 0.5),
    2: ("111111", 0.5),
    3: ("111111", 0.5),
    4: ("110011", 0.63),
    5: ("010000", 0.0),
    6: ("100011", 0.71),
    7: ("100001", 0.83),
    8: ("001100", 0.0),
    9: ("001100", 0.0),
    10: ("001000", 0.0),
    11: ("000100", 0.0),
    12: ("000000", 0.0),
    13: ("111111", 0.5),
}
#: Wong, Debroy, Gao and Li, "The DStar method for effective software fault localization", IEEE Transactions
#: on Reliability 63(1), 2014, table I: failing and passing tests that run each statement, of 4 and 8, and
#: its D*2.
DSTAR = {
    "s1": (4, 8, 2.0),
    "s2": (4, 8, 2.0),
    "s3": (4, 7, 2.29),
    "s4": (4, 7, 2.29),
    "s5": (1, 5, 0.13),
    "s6": (3, 2, 3.0),
    "s7": (1, 1, 0.25),
    "s8": (2, 1, 1.33),
    "s9": (0, 1, 0.0),
}


def _scored(spark: Any, rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    from celery_poison.pipeline import blame

    counts = "failed long, passed long, failed_total long, passed_total long, proven long, guilt double"
    full = [(*row, 0, float(row[2])) for row in rows]
    frame = spark.createDataFrame(full, f"dimension string, key string, {counts}")
    return {row.key: row for row in blame.score(frame).collect()}


@pytest.mark.matrix
def test_the_worked_example_of_tarantula_comes_out_as_published(spark: Any) -> None:
    rows = [("mid", str(n), int(runs[5]), runs[:5].count("1"), 1, 5) for n, (runs, _) in MID.items()]
    scored = _scored(spark, rows)
    told = [scored[str(n)].tarantula for n in MID]
    assert told == [pytest.approx(said, abs=0.0051) for _, said in MID.values()]
    # The same example by the definition of Ochiai (Abreu, Zoeteweij and van Gemund, 2007): 1/sqrt(1*(1+1)).
    assert scored["7"].ochiai == pytest.approx(0.5**0.5, abs=1e-12)
    assert (scored["7"].rank, scored["6"].rank, scored["4"].rank, scored["1"].rank) == (1, 2, 3, 4)


@pytest.mark.matrix
def test_the_worked_example_of_dstar_comes_out_as_published(spark: Any) -> None:
    scored = _scored(spark, [("s", key, failed, passed, 4, 8) for key, (failed, passed, _) in DSTAR.items()])
    told = [scored[key].dstar for key in DSTAR]
    assert told == [pytest.approx(said, abs=0.0051) for *_, said in DSTAR.values()]


@pytest.mark.matrix
def test_the_edges_of_the_measures_are_numbers(spark: Any) -> None:
    scored = _scored(spark, [("x", "all", 3, 0, 3, 0), ("x", "none", 0, 0, 0, 0), ("x", "calm", 0, 9, 3, 9)])
    told = {key: (row.ochiai, row.tarantula, row.dstar, row.jaccard) for key, row in scored.items()}
    assert told == {"all": (1, 1, float("inf"), 1), "none": (0, 0, 0, 0), "calm": (0, 0, 0, 0)}


@pytest.mark.matrix
def test_counts_and_scores_agree_with_an_independent_computation_and_no_bystander_is_above_a_culprit(
    history: Path, attempts_of_history: Any
) -> None:
    agree(history, attempts_of_history, trials=False)
    no_bystander_above(history, agree(history, attempts_of_history, trials=True))


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_five_million_attempts_agree_and_no_bystander_is_above_a_culprit(spark: Any, tmp_path: Path) -> None:
    from celery_poison.pipeline.derived import Derived
    from celery_poison.pipeline.lake import Lake
    from examples.histories import World, write_lake

    write_lake(World(), tmp_path)
    rows = Derived(spark, Lake(spark, str(tmp_path)))["blame"].collect()
    no_bystander_above(tmp_path, agreed(tmp_path / "journal", rows, trials=True))


@pytest.mark.matrix
def test_measures_are_compared_with_what_the_trials_proved(attempts_of_history: Any) -> None:
    from celery_poison.pipeline import blame

    rows = {(row.measure, row.top): row for row in blame.compare(attempts_of_history).collect()}
    assert {measure for measure, _ in rows} == {*blame.MEASURES, "rate_low"}
    deadly = rows["ochiai", 5].deadly
    # A measure that finds nothing at its very top among two dozen poisons would be no measure.
    assert rows["ochiai", 5].precision == 1.0
    assert rows["ochiai", deadly].precision == rows["ochiai", deadly].recall > 0.5


def agree(history: Path, made: Any, trials: bool) -> list[Any]:
    from celery_poison.pipeline import blame

    return agreed(history, blame.score(blame.spectrum(made, trials=trials)).collect(), trials)


def agreed(history: Path, rows: list[Any], trials: bool) -> list[Any]:
    from celery_poison.pipeline import blame

    told = {(row.dimension, row.key): row for row in rows}
    expected = independent.counts(history, trials=trials)
    assert len(expected) > 100
    assert {key: (r.failed, r.passed, r.failed_total, r.passed_total) for key, r in told.items()} == expected
    for key, row in told.items():
        measures = independent.scores(*expected[key])
        assert {name: row[name] for name in blame.MEASURES} == pytest.approx(measures, abs=1e-9), key
        assert 0 <= row.rate_low < row.rate < row.rate_high <= 1
    return rows


def no_bystander_above(history: Path, rows: list[Any]) -> None:
    """Of each kind, by Ochiai: whatever belongs to a task in which something is planted is no bystander."""
    truth = json.loads((history / "_truth.json").read_text())
    for dimension, guilty in truth["culprits"].items():
        ranked = [row for row in rows if row.dimension == dimension]
        worst = max(row.rank for row in ranked if row.key in guilty)
        above = [row.key for row in ranked if row.rank <= worst]
        bystanders = [key for key in above if _task(key) not in truth["tainted"] and key not in guilty]
        assert set(guilty) <= set(above)
        assert bystanders == [], dimension


def _task(key: str) -> str:
    return key.split("(")[0].split(" ")[0]
