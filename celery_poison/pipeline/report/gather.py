"""What the report shows, as plain data that JSON can hold; SQL that Spark and DuckDB read alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from celery_poison.pipeline.backtest.grid import Recommendation, as_dict, as_recommended
from celery_poison.pipeline.backtest.replay import Outcome
from celery_poison.pipeline.blame import ALWAYS, Ask, filled
from celery_poison.pipeline.window import Window

#: How many of each dimension are shown.
TOP = 12
#: How many anomalies are.
MOST_ANOMALIES = 50

_TOTALS = """
select coalesce(sum(n), 0) as attempts, coalesce(sum(case when t.end = 'crashed' then n end), 0) as deaths,
  coalesce(sum(case when proof = 'cleared' then n end), 0) as cleared, count(distinct task) as tasks,
  min(date) as since, max(date) as until
from {tallies} t where {recent} and {window}
"""
_DAYS = """
select date, kind, count(*) as n from {incidents} where {recent} and {window}
group by date, kind order by date
"""
_RECOVERY = """
select date, median(recovery_ms) as median, max(recovery_ms) as longest, count(*) as n
from {incidents} where recovery_ms is not null and {recent} and {window} group by date order by date
"""
_HOURS = """
select task, hour(ended_at) as hour, count(*) as n from {deaths}
where proof <> 'cleared' and {recent} and {window} group by task, hour(ended_at)
"""


def gather(
    ask: Ask,
    blamed: Sequence[Mapping[str, Any]],
    changed: Sequence[Mapping[str, Any]],
    *,
    window: Window = ALWAYS,
    outcomes: Sequence[Outcome] = (),
    recommended: Recommendation | None = None,
    as_of: str = "",
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that the page shows.

    Args:
        ask: runs a query over ``{tallies}``, ``{incidents}`` and ``{deaths}``.
        blamed, changed: what blame and anomalies say of the same window.
        as_of: of which history all of it is, in words.
        left_out: sentences on what the lake could not read.
    """
    names = {"recent": window.recent, "window": window.within}

    def rows(query: str) -> list[dict[str, Any]]:
        return [as_json(row) for row in ask(filled(query, names)).to_pylist()]

    return {
        "window": window.as_dict(),
        "as_of": as_of,
        "totals": rows(_TOTALS)[0],
        "days": rows(_DAYS),
        "recovery": rows(_RECOVERY),
        "hours": rows(_HOURS),
        "blame": [as_json(row) for row in top(blamed, TOP)],
        "anomalies": [as_json(row) for row in changed[:MOST_ANOMALIES]],
        "backtest": [as_dict(told) for told in outcomes],
        "recommended": recommended and as_recommended(recommended),
        "left_out": [*left_out],
    }


def top(blamed: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the first ``count`` of each dimension."""
    taken: dict[str, int] = {}
    found = []
    for row in blamed:
        taken[row["dimension"]] = taken.get(row["dimension"], 0) + 1
        if taken[row["dimension"]] <= count:
            found.append(row)
    return found


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can hold it: days as text, and numbers that are none, too."""
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return int(value) if type(value).__name__ == "Decimal" else value
