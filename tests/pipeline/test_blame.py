"""Blame: guilty is what a trial proved, of everything else the chance is told (NEW-7).

The queries run in DuckDB here, over a journal's files or a few entries; ``test_clusters`` runs them in Spark.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("scipy")

from celery_poison.errors import ConfigurationError
from celery_poison.pipeline.blame import DIMENSIONS, blame, is_worse_by_start, says, with_history
from celery_poison.pipeline.window import Window
from tests.pipeline import tallied
from tests.pipeline.entries import W1, W2, cleared, died, ran
from tests.pipeline.worlds import history as history_of

DAY = 86_400.0


def _standing(rows: list[dict[str, Any]], standing: str) -> dict[str, set[str]]:
    return {
        name: {row["key"] for row in rows if (row["dimension"], row["standing"]) == (name, standing)}
        for name in DIMENSIONS
    }


@pytest.fixture(scope="module")
def planted(history: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    truth: dict[str, Any] = json.loads((history / "_truth.json").read_text())
    return truth, blame(tallied.history(history))


def test_on_a_planted_history_no_host_release_or_task_is_guilty(
    planted: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    """All eight hosts, all releases and most tasks were, by the measure of a proven death."""
    truth, rows = planted
    guilty = _standing(rows, "guilty")
    assert {name for name, keys in guilty.items() if keys} == {"fingerprint"}
    assert set(truth["culprits"]["fingerprint"]) <= guilty["fingerprint"]


def test_on_a_planted_history_exactly_what_was_planted_is_suspicious(
    planted: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    truth, rows = planted
    (release,) = truth["culprits"]["release"]
    wanted = {name: set(truth["culprits"].get(name, ())) for name in DIMENSIONS}
    # One task dies under that release, and no other: that is what is told.
    wanted |= {"fingerprint": set(), "release": set(), "task_release": {f"shop.fraud.score @ {release}"}}
    assert _standing(rows, "suspicious") == wanted


def _calm(many: int, task: str = "t.calm", **more: Any) -> list[dict[str, Any]]:
    return [ran(f"c{n}", f"c{task}{n}", n, ms=60_000, task=task, **more) for n in range(many)]


def _one(entries: list[dict[str, Any]], dimension: str, key: str, **how: Any) -> dict[str, Any]:
    (row,) = [
        r for r in blame(tallied.entries(entries), **how) if (r["dimension"], r["key"]) == (dimension, key)
    ]
    return row


def test_a_message_that_dies_again_is_counted_once() -> None:
    again = [died("a", f"a{n}", 100 + n, crashes=n + 1, queue="q") for n in range(5)]
    assert _one([*_calm(50), *again], "task", "t.poison")["deaths"] == 1
    assert _one([*_calm(50), *again], "queue", "q")["deaths"] == 1


def test_a_death_that_several_may_be_guilty_of_is_divided_and_whom_a_trial_cleared_has_no_part_in_it() -> (
    None
):
    shared = [died(f"s{n}", f"s{n}", 100, "shared", incident="i1", task=f"t.s{n}") for n in range(3)]
    open_ = [*_calm(50), *shared]
    assert _one(open_, "task", "t.s0")["deaths"] == pytest.approx(1 / 3, abs=0.001)
    told = [*open_, ran("s0", "s0b", 110, task="t.s0"), cleared("s0", "s0b", 111)]
    rows = blame(tallied.entries(told))
    assert {r["key"]: r["deaths"] for r in rows if r["dimension"] == "task"} == {"t.s1": 0.5, "t.s2": 0.5}
    proven = [*told, died("s1", "s1b", 112, "exact", crashes=2, task="t.s1")]
    rows = blame(tallied.entries(proven))
    assert {r["key"]: r["deaths"] for r in rows if r["dimension"] == "task"} == {"t.s1": 1.0}


def test_guilty_is_only_whom_a_trial_proved_and_nobody_saw_end_alive() -> None:
    once = died("a", "a1", 100, crashes=1, fingerprint="f" * 16)
    also = died("b", "b1", 105, crashes=1, fingerprint="f" * 16)
    again = died("a", "a2", 110, crashes=2, fingerprint="f" * 16)
    assert _one([*_calm(50), once, also], "fingerprint", "f" * 16)["standing"] != "guilty"
    row = _one([*_calm(50), once, again], "fingerprint", "f" * 16)
    assert (row["standing"], row["proven"], row["deaths"]) == ("guilty", 1, 1)
    assert row["says"].startswith("guilty: 1 of its messages died again when tried alone")
    alive = ran("d", "d1", 120, fingerprint="f" * 16)
    assert _one([*_calm(50), once, also, again, alive], "fingerprint", "f" * 16)["standing"] != "guilty"


def test_a_suspicion_is_told_with_its_chance_in_plain_words() -> None:
    deaths = [died(f"x{n}", f"x{n}", 1000 + n, task="t.bad", ms=1000) for n in range(6)]
    row = _one([*_calm(500), *deaths], "task", "t.bad")
    assert row["standing"] == "suspicious" and row["p"] < 1e-6
    assert f"suspicious: 6 deaths where {row['expected']:.2g} are expected, p={row['p']:.2g}" in row["says"]
    calm = {**row, "standing": "unremarkable", "p": 0.3, "expected": 4.0}
    assert says(calm) == "nothing against it: 6 deaths where 4 are expected, p=0.3"
    many = {**calm, "deaths": 1271.0, "expected": 99.7}
    assert says(many) == "nothing against it: 1,271 deaths where 100 are expected, p=0.3"
    by_start = {"start_times": 929.0, "start_low": 709.0, "start_high": 1196.4, "start_q": 0.01}
    assert "died 929 times (709 to 1,196) as often" in says({**many, **by_start, "since": "2026-01-23 00:04"})


def test_a_cause_can_be_looked_at_alone() -> None:
    deaths = [
        died(f"x{n}", f"x{n}", 100 + n, worker=W2, cause="oom" if n < 4 else "signal:11") for n in range(9)
    ]
    told = [*_calm(200, worker=W1), *_calm(200, "t.other", worker=W2), *deaths]
    row = _one(told, "host", "app-02")
    assert (row["deaths"], row["causes"]) == (9, "signal:11 5, oom 4")
    row = _one(told, "host", "app-02", cause="oom")
    assert (row["deaths"], row["causes"]) == (4, "oom 4")


def test_a_window_is_judged_by_itself_and_compared_with_what_came_before() -> None:
    start = Window.of("2026-03-09", None, None)
    told = [
        *(ran(f"c{n}", f"c{n}", n * DAY / 10, ms=3_600_000) for n in range(140)),
        *(died(f"a{n}", f"a{n}", (7.1 + n / 10) * DAY, task="t.calm") for n in range(8)),
        died("b", "b0", 1 * DAY, task="t.calm"),
        died("old", "old", 2 * DAY, task="t.gone"),
    ]
    row = _one(told, "task", "t.calm", window=start)
    assert (row["deaths"], row["before_deaths"]) == (8, 1)
    assert row["before_expected"] == pytest.approx(1, rel=0.2) and row["change_p"] < 0.05
    assert "at its rate before it would have been" in row["says"]
    keys = {r["key"] for r in blame(tallied.entries(told), start) if r["dimension"] == "task"}
    assert "t.gone" not in keys
    early = blame(tallied.entries(told), Window.of(None, "2026-03-09", None))
    assert {(r["key"], r["deaths"]) for r in early if r["dimension"] == "task"} == {
        ("t.calm", 1),
        ("t.gone", 1),
    }


def test_it_says_the_same_to_the_last_digit_in_whatever_order_the_rows_come() -> None:
    """The tasks of a cluster end in another order each time, and thirds add up to another last digit."""
    shared = [
        died(f"s{i}{n}", f"s{i}{n}", 100, "shared", incident=f"i{i}", task=f"t.{n}", queue=f"q{i}")
        for i in range(6)
        for n in range(3 + i % 3)
    ]
    ask = tallied.entries([*_calm(50), *shared])

    def mixed(query: str) -> Any:
        rows = ask(query)
        order = dice.sample(range(len(rows)), len(rows))
        return rows.take(order) if order else rows

    told, dice = blame(ask), random.Random(7)
    for _ in range(5):
        assert blame(mixed) == told


def test_a_history_without_a_death_blames_nobody() -> None:
    assert blame(tallied.entries(_calm(5))) == []


def test_days_are_told_as_dates_or_counted_back_from_the_newest_in_the_lake() -> None:
    last = Window.of("2026-03-01", None, None).since
    assert str(Window.of("7d", None, last).since) == "2026-02-23"
    assert str(Window.of("7d", "2026-02-01", last).since) == "2026-01-25"
    assert Window.of("7d", None, None) == Window.of(None, None, last) == Window()
    with pytest.raises(ConfigurationError, match="--since yesterday: a day is wanted"):
        Window.of("yesterday", None, last)
    with pytest.raises(ConfigurationError, match="no day lies between"):
        Window.of("2026-03-01", "2026-03-01", last)


def test_NEW_22_first_seen_is_when_something_was_first_accused_and_stays() -> None:
    row = {"dimension": "task", "key": "t.bad", "standing": "suspicious"}
    calm = {"dimension": "host", "key": "a", "standing": "unremarkable"}
    first = with_history([row, calm], [], "100-0")
    assert [each["first_seen"] for each in first] == ["100-0", None]
    again = with_history([row, {**calm, "standing": "guilty"}], first, "200-0")
    assert [each["first_seen"] for each in again] == ["100-0", "200-0"]


def test_NEW_22_what_an_older_release_judged_counts_as_told() -> None:
    row = {"dimension": "task", "key": "t.bad", "standing": "suspicious"}
    (again,) = with_history([row], [{**row, "first_seen": "100-0", "told": None}], "200-0")
    assert (again["first_seen"], again["told"]) == ("100-0", True)


@pytest.mark.parametrize("years", [-56, 3112])
def test_NEW_22_one_clock_that_was_wrong_by_years_acquits_no_task_and_accuses_none(years: int) -> None:
    runs = [
        ran(f"{task}{n}", f"{task}{n}", DAY * (n % 30), task=task)
        for task in ("t.calm", "t.bad")
        for n in range(900)
    ]
    deaths = [died(f"b{n}", f"b{n}", DAY * (n % 30), blame="shared", task="t.bad") for n in range(30)]
    far = died("far", "far", years * 365 * DAY, blame="shared", task="t.calm", ms=5)
    before, after = (blame(tallied.entries(entries)) for entries in ([*runs, *deaths], [*runs, *deaths, far]))
    assert _standing(before, "suspicious")["task"] == _standing(after, "suspicious")["task"] == {"t.bad"}


def test_NEW_22_a_slower_release_is_not_accused_but_asked_of_its_starts_it_is_told() -> None:
    rows = blame(tallied.table(history_of("a slower release", 2)))
    told = [row for row in rows if is_worse_by_start(row)]
    assert told and {row["key"].partition(" @ ")[2] for row in told} == {"2026.5"}
    for row in told:
        assert (row["standing"], row["dimension"]) == ("unremarkable", "task_release")
        assert row["start_low"] > 1.5 and row["task"] == row["key"].partition(" @ ")[0]
        assert "each start since 2026-01-20 00:" in row["says"]


def test_NEW_22_a_host_belongs_to_the_node_on_which_its_worker_said_that_it_began() -> None:
    third = "main@app-03/c"
    starts = ((W1, "on n1", 0), (W2, "on n1", 0), (W2, "on n2", 2 * DAY), (third, None, 0))
    on = [{"event": "worker_started", "worker": who, "note": note, "s": s} for who, note, s in starts]
    deaths = [died(f"{w}{d}", f"{w}{d}", d * DAY, worker=w) for w in (W1, W2, third) for d in range(4)]
    told = [*_calm(50), *on, *deaths]
    nodes = {r["key"]: r["deaths"] for r in blame(tallied.entries(told)) if r["dimension"] == "node"}
    assert nodes == {"n1": 6, "n2": 2}
    assert "node" not in {r["dimension"] for r in blame(tallied.entries([*_calm(50), *deaths]))}


def test_NEW_22_what_another_command_judged_is_new_until_it_was_printed_as_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake")
    from celery_poison.cli.pipeline_commands import _blame_new
    from celery_poison.pipeline.derived import AsOf, Derived
    from celery_poison.pipeline.lake import Lake, Position

    ask = tallied.entries([*_calm(50), *(died(f"d{n}", f"d{n}", 100 * n) for n in range(10))])

    def lake(ms: int) -> Any:
        """Return a lake that was read up to then, and whose tables DuckDB has."""
        derived: Any = Derived(None, Lake(None, str(tmp_path), "x"))
        derived._made, derived._goal = True, Position(ms)
        derived._as_of = AsOf(1, f"{ms}-0", None, (), ())
        derived.ask = ask
        return derived

    heard: list[str] = []
    options = {"notify": heard.extend}
    assert [row["told"] for row in lake(100).judge() if row["first_seen"]] != []
    with pytest.raises(SystemExit):
        _blame_new(lake(200), options)
    assert any(each.startswith("task t.poison: suspicious") for each in heard)
    assert "task t.poison: suspicious" in capsys.readouterr().out
    for ms in (200, 300):
        _blame_new(lake(ms), options)
        assert capsys.readouterr().out == "nothing new is accused\n"
    accused = [row for row in lake(400).judge() if row["standing"] != "unremarkable"]
    assert {(row["first_seen"], row["told"]) for row in accused} == {("100-0", True)}
