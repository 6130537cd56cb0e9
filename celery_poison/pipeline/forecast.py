"""What runs need and how long they wait, by task: the chance of more than a limit, with its interval (NEW-7).

What is expected of the last days is said by the days before them, and compared with what came. Days vary more
than chance explains, which widens what is expected. docs/pipeline-tables.md has every word. The query is SQL
that Spark and DuckDB read alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from celery_poison.pipeline.blame import ALWAYS, SIZES, Ask
from celery_poison.pipeline.death_model import FALSE_SHARE
from celery_poison.pipeline.dispersion import Floats
from celery_poison.pipeline.tables.attempts import LONGEST_MS
from celery_poison.pipeline.window import SIZE, Window

#: A run's milliseconds; no run takes longer, whatever its entry says.
RAN = f"(case when runtime_ms > {LONGEST_MS} then {LONGEST_MS} else runtime_ms end)"
#: What can be asked of a run: in SQL, how many of its unit make the one that is shown, and that one's name.
MEASURES = {
    "peak": ("run_memory_kb", 1024, "MiB"),
    "runtime": (RAN, 1000, "s"),
    "wait": ("wait_ms", 1000, "s"),
    "latency": (f"wait_ms + {RAN}", 1000, "s"),
}
#: Values are counted by so many parts of a doubling.
_PARTS = 8
_SURE = np.array([0.025, 0.975])
_RANKS = {"p50": 0.5, "p95": 0.95}
#: Fewer runs or days of a task under a release are not compared.
_LEAST_RUNS, _LEAST_DAYS = 30, 3


class Chance(NamedTuple):
    """How many of a number of runs were above the limit, and how much more days vary than chance explains."""

    runs: float
    above: float
    varying: float

    @classmethod
    def of(cls, runs: Floats, above: Floats) -> Chance:
        """Return the chance of a run above a limit, by the counts of some days."""
        total, over = float(runs.sum()), float(above.sum())
        share = over / max(total, 1.0)
        mean, chance = runs * share, runs * share * (1 - share)
        squares = ((above - mean) ** 2)[chance > 0] / chance[chance > 0]
        varying = max(1.0, float(squares.sum()) / (len(squares) - 1)) if len(squares) > 1 else 1.0
        return cls(total, over, varying)

    def _beta(self) -> tuple[float, float]:
        return self.above / self.varying + 0.5, (self.runs - self.above) / self.varying + 0.5

    def interval(self) -> tuple[float, float]:
        """Return the bounds of the share, to 95 %."""
        from scipy import stats  # takes a second or more, which who asks for no forecast need not wait

        low, high = stats.beta.ppf(_SURE, *self._beta())
        return float(low) if self.above else 0.0, float(high)

    def expected(self, runs: float) -> tuple[int, int]:
        """Return how many of so many further runs are above the limit, to 95 %."""
        from scipy import stats

        many = max(1, round(runs / self.varying))
        low, high = stats.betabinom.ppf(_SURE, many, *self._beta()) * self.varying
        return int(np.floor(low)), int(np.ceil(high))


def forecast(
    ask: Ask, measure: str, limit: float, window: Window = ALWAYS, release: str = ""
) -> list[dict[str, Any]]:
    """Return a row for each task; of memory, for each decade of its payload, too. The most above is first.

    Args:
        ask: runs a query over ``{measured}``.
        measure: a name of :data:`MEASURES`.
        limit: in the unit that is shown.
        release: whose runs are compared with those under all others; empty: the newest.
    """
    runs = ask(window.fill(_query(measure, limit))).to_pandas()
    if runs.empty:
        return []
    days = sorted(runs["date"].unique())
    first = runs[runs["release"].notna()].groupby("release")["date"].min().sort_values(kind="stable")
    release = release or (str(first.index[-1]) if len(first) else "")
    tasks = dict(tuple(runs.groupby("task")))
    drifts = {task: _drift(of, release, FALSE_SHARE / len(tasks)) for task, of in tasks.items()}
    rows = [
        {"task": task, "size": None if pd.isna(size) else SIZES[int(size)]}
        | _row(of, days, MEASURES[measure][1])
        | {"release": release, **drifts[task]}
        for (task, size), of in runs.groupby(["task", "size"], dropna=False)
    ]
    return sorted(rows, key=lambda row: (-row["above"], -row["runs"], row["task"], row["size"] or ""))


def _query(measure: str, limit: float) -> str:
    """Return what counts the runs of each day. One for which memory ran out needed more than any limit."""
    value, unit, _ = MEASURES[measure]
    above = f"{value} > {round(limit * unit)}"
    size, ran_out = "cast(null as int)", "false"
    if measure == "peak":
        size, ran_out = SIZE, "died and cause = 'oom'"
    return f"""
    select task, {size} as size, release, cast(date as string) as date, died,
      coalesce({above} or {ran_out}, false) as above, coalesce({ran_out} and not {above}, false) as spared,
      cast(floor({_PARTS} * log2(greatest({value}, 1))) as int) as place,
      count(*) as n, cast(sum({RAN}) as double) as ms
    from {{measured}} m where task is not null and {value} is not null and {{recent}} and {{window}}
    group by all"""


def _row(runs: pd.DataFrame, days: list[str], unit: int) -> dict[str, Any]:
    def by_day(of: pd.DataFrame) -> Floats:
        return np.asarray(of.groupby("date")["n"].sum().reindex(days, fill_value=0), dtype=float)

    above = runs[runs["above"]]
    every, over = by_day(runs), by_day(above)
    known, (low, high) = Chance.of(every, over), Chance.of(every, over).interval()
    places = runs.groupby("place")["n"].sum()
    told = {name: _value(places, rank) / unit for name, rank in _RANKS.items()}
    row = {
        "runs": int(known.runs),
        **{name: round(value, 3) for name, value in told.items()},
        "most": round(2 ** ((int(runs["place"].max()) + 1) / _PARTS) / unit, 3),
        "above": int(known.above),
        "share": known.above / known.runs,
        "low": low,
        "high": high,
        "a_day": known.above / len(days),
    }
    for name, died in (("alive_above", False), ("died_above", True)):
        of = above[above["died"] == died]
        row |= {name: int(of["n"].sum()), f"{name}_hours": float(of["ms"].sum()) / 3_600_000}
    return row | {"spared": int(runs[runs["spared"]]["n"].sum()), **_held_out(every, over)}


def _held_out(runs: Floats, above: Floats) -> dict[str, int | None]:
    """Return what the first days say of the last 30 % of them, and what came; of a short history nothing."""
    many = int(len(runs) * 0.3)
    if many < 2 or not runs[:-many].sum():
        return dict.fromkeys(("held_days", "expected_low", "expected_high", "came"))
    low, high = Chance.of(runs[:-many], above[:-many]).expected(float(runs[-many:].sum()))
    return {"held_days": many, "expected_low": low, "expected_high": high, "came": int(above[-many:].sum())}


def _value(places: Any, rank: float) -> float:
    return float(2 ** _log(places.to_numpy(dtype=float)[None, :], places.index.to_numpy(), rank)[0])


def _log(counts: Floats, places: Any, rank: float) -> Floats:
    """Return of each row of counts by place the binary logarithm of a quantile."""
    sums = counts.cumsum(axis=1)
    wanted = sums[:, -1] * rank
    at = (sums >= wanted[:, None] - 1e-9).argmax(axis=1)
    own = np.take_along_axis(counts, at[:, None], 1)[:, 0]
    before = np.take_along_axis(sums, at[:, None], 1)[:, 0] - own
    within: Floats = (places[at] + np.clip((wanted - before) / np.maximum(own, 1), 0, 1)) / _PARTS
    return within


def _drift(runs: pd.DataFrame, release: str, chance: float) -> dict[str, Any]:
    """Return how many times as much a task needs under a release, where that is not by chance."""
    from scipy import stats

    sides = [runs[runs["release"] == release], runs[(runs["release"] != release) & runs["release"].notna()]]
    tables = [side.pivot_table("n", "date", "place", aggfunc="sum", fill_value=0) for side in sides]
    ends = ("times", "low", "high")
    found: dict[str, Any] = {f"{name}_{end}": None for name in _RANKS for end in ends}
    if any(len(table) < _LEAST_DAYS or table.to_numpy().sum() < _LEAST_RUNS for table in tables):
        return found
    free = len(tables[0]) + len(tables[1]) - 2
    for name, rank in _RANKS.items():
        (now, varies), (was, varied) = (_quantile_of_days(table, rank) for table in tables)
        wide = float(np.sqrt(varies + varied))
        if abs(now - was) > stats.t.isf(chance / 4, free) * wide:  # two sides, two ranks
            logs = now - was + np.array([0.0, *stats.t.ppf(_SURE, free)]) * wide
            found |= {f"{name}_{end}": float(2**log) for end, log in zip(ends, logs, strict=True)}
    return found


def _quantile_of_days(table: pd.DataFrame, rank: float) -> tuple[float, float]:
    """Return the binary logarithm of a quantile and its variance: days are drawn again and again."""
    counts, places, days = table.to_numpy(dtype=float), table.columns.to_numpy(), len(table)
    drawn = np.random.default_rng(0).multinomial(days, np.full(days, 1 / days), 400) @ counts
    value = float(_log(counts.sum(axis=0)[None, :], places, rank)[0])
    return value, float(_log(drawn[drawn.sum(axis=1) > 0], places, rank).var()) * days / (days - 1)
