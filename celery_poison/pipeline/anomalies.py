"""What changed with the deaths: new deaths, slower recoveries (NEW-7).

As in :mod:`celery_poison.pipeline.blame`, the queries are SQL that Spark and DuckDB read alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from celery_poison.pipeline.blame import ALWAYS, Ask
from celery_poison.pipeline.model import FALSE_SHARE, q_values
from celery_poison.pipeline.window import Window

#: Fewer deaths, or incidents, say nothing.
LEAST = 8
#: How many times the usual counts as changed.
TIMES = 2.0

#: In the window, and before it: without one there is nothing to compare.
RECOVERIES = """
with recovered as (
  select queue, i.date as date, cast(recovery_ms as double) as ms, {recent} as recent
  from (select * from {incidents} where recovery_ms is not null and {window}) i
  join (select distinct death, queue from {deaths} where incident is not null and queue is not null) d
    on i.death = d.death
)
select 'recovery' as kind, queue as key, max(date) as date, median(case when recent then ms end) as value,
  median(case when not recent then ms end) as usual,
  least(count(case when recent then 1 end), count(case when not recent then 1 end)) as n
from recovered group by queue
"""


def anomalies(
    ask: Ask, blamed: Iterable[Mapping[str, Any]] = (), window: Window = ALWAYS
) -> list[dict[str, Any]]:
    """Return what stands out, the largest factor first.

    Args:
        blamed: what :func:`celery_poison.pipeline.blame.blame` said of the same window.

    Returns:
        ``kind, key, date, value, usual, times, says``. ``deaths`` compares those of an element with those
        that it would have had at its rate before the window; ``recovery`` the median of a queue's incidents
        with that before the window. Without one nothing is compared.
    """
    found = [
        {**row, "says": f"milliseconds, since {window.since} against before"}
        for row in ask(window.fill(RECOVERIES)).to_pylist()
        if row.pop("n") >= LEAST and row["usual"]
    ]
    found += _more_deaths(blamed)
    for row in found:
        row["times"] = row["value"] / row["usual"]
    found = [row for row in found if row["times"] >= TIMES]
    return sorted(found, key=lambda row: (-row["times"], row["kind"], row["key"]))


def _more_deaths(blamed: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return what is suspicious now and kills more often than it did before, or did not run before.

    Only of what is suspicious: when a task begins to kill, the rate of its host and of its queue rises with
    it.
    """
    bad = [row for row in blamed if row["standing"] != "unremarkable" and row["deaths"] >= LEAST]
    bad = [row for row in bad if row["before_deaths"] is not None]
    compared = [row for row in bad if row["change_p"] is not None]
    rates = q_values(np.array([row["change_p"] for row in compared]), len(compared))
    found = [
        (row, row["expected"], "expected; it did not run before") for row in bad if row["change_p"] is None
    ]
    found += [
        (row, row["before_expected"], f"at its rate before, q={chance:.2g}")
        for row, chance in zip(compared, rates, strict=True)
        if chance < FALSE_SHARE
    ]
    for row, usual, words in found:
        says = f"{row['deaths']:.3g} deaths, {usual:.2g} {words}"
        told = {"kind": "deaths", "key": f"{row['dimension']} {row['key']}", "date": None, "says": says}
        # Half a death at least: none at all before is a small rate and no division by nothing.
        yield {**told, "value": row["deaths"], "usual": max(usual, 0.5)}
