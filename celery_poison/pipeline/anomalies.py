"""What changed before or with the deaths: drifts, new deaths, slower recoveries (NEW-7).

As in :mod:`celery_poison.pipeline.blame`, the queries are SQL that Spark and DuckDB read alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from celery_poison.pipeline.blame import ALWAYS, Ask, filled
from celery_poison.pipeline.model import FALSE_SHARE, q_values
from celery_poison.pipeline.window import Window

#: Fewer deaths, or incidents, say nothing.
LEAST = 8
#: How many times the usual counts as changed.
TIMES = 2.0
MEASURES = {"payload": "payload_bytes", "duration": "runtime_ms", "memory": "memory_kb"}

#: Of the table ``anomalies``.
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.string()),
        ("date", pa.date32()),
        *((name, pa.float64()) for name in ("value", "usual", "times")),
        ("says", pa.string()),
    ]
)

_DIED = " union all ".join(
    f"select task, '{measure}' as measure, cast({column} as double) as value, date from {{deaths}}"
    f" where proof = 'proven' and {column} is not null and {{recent}} and {{window}}"
    for measure, column in MEASURES.items()
)
DRIFTS = f"""
select task, measure, median(value) as value, count(*) as n, max(date) as date from ({_DIED}) d
where task is not null group by task, measure having count(*) >= {LEAST}
"""
USUAL = """
select task, measure, cast(value as double) as value, cast(n as bigint) as n from {usual}
where {recent} and {window}
"""
RECOVERIES = """
select queue, i.at as noticed, i.date as date, cast(recovery_ms as double) as ms, {recent} as recent
from (select * from {incidents} where recovery_ms is not null and {window}) i
join (select distinct death, queue from {deaths} where incident is not null and queue is not null) d
  on i.death = d.death
"""


def anomalies(
    ask: Ask, blamed: Iterable[Mapping[str, Any]] = (), window: Window = ALWAYS
) -> list[dict[str, Any]]:
    """Return what stands out, the largest factor first.

    Args:
        blamed: what :func:`celery_poison.pipeline.blame.blame` said of the same window.

    Returns:
        ``kind, key, date, value, usual, times, says``. ``payload``, ``duration`` and ``memory`` compare the
        median of what died of a task with what ended alive; ``deaths`` those of an element with those that it
        would have had at its rate before the window; ``recovery`` the median of a queue's incidents with that
        before the window, or without one that of the last third of its time with the first.
    """
    names = {"recent": window.recent, "window": window.within}
    found = [*_drifts(ask, names), *_more_deaths(blamed), *_slower(ask, names, window)]
    for row in found:
        row["times"] = row["value"] / row["usual"]
    found = [row for row in found if row["times"] >= TIMES]
    return sorted(found, key=lambda row: (-row["times"], row["kind"], row["key"]))


def _drifts(ask: Ask, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    points: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for row in ask(filled(USUAL, names)).to_pylist():
        points.setdefault((row["task"], row["measure"]), []).append((row["value"], row["n"]))
    for row in ask(filled(DRIFTS, names)).to_pylist():
        days = sorted(points.get((row["task"], row["measure"]), ()))
        reached = np.cumsum([n for _, n in days])
        usual = days[int(np.searchsorted(reached, reached[-1] / 2))][0] if days else 0.0
        if usual > 0:
            says = f"{row['measure']} of the {row['n']} that died, against those that ended alive"
            yield _row(row["measure"], row["task"], row["date"], row["value"], usual, says)


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
        key, says = f"{row['dimension']} {row['key']}", f"{row['deaths']:.3g} deaths, {usual:.2g} {words}"
        # Half a death at least: none at all before is a small rate and no division by nothing.
        yield _row("deaths", key, None, row["deaths"], max(usual, 0.5), says)


def _slower(ask: Ask, names: Mapping[str, str], window: Window) -> Iterator[dict[str, Any]]:
    queues: dict[str, list[dict[str, Any]]] = {}
    for row in ask(filled(RECOVERIES, names)).to_pylist():
        queues.setdefault(row["queue"], []).append(row)
    for queue, rows in queues.items():
        if window.since:
            says = f"milliseconds, since {window.since} against before"
            early = [row["ms"] for row in rows if not row["recent"]]
            late = [row["ms"] for row in rows if row["recent"]]
        else:
            says = "milliseconds, the last third of its incidents against the first"
            first, last = min(row["noticed"] for row in rows), max(row["noticed"] for row in rows)
            third = (last - first) / 3
            early = [row["ms"] for row in rows if row["noticed"] < first + third]
            late = [row["ms"] for row in rows if row["noticed"] > last - third]
        if min(len(early), len(late)) >= LEAST and (usual := float(np.median(early))) > 0:
            day = max(row["date"] for row in rows)
            yield _row("recovery", queue, day, float(np.median(late)), usual, says)


def _row(kind: str, key: str, day: date | None, value: float, usual: float, says: str) -> dict[str, Any]:
    return {"kind": kind, "key": key, "date": day, "value": value, "usual": usual, "says": says}
