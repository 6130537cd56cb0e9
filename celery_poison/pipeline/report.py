"""One page to look at, and the same figures as JSON (NEW-7).

``gather`` asks for the few hundred rows that are shown, by SQL that Spark and DuckDB read alike; ``render``
makes of them one file of plain tables that loads nothing and runs nothing, with every foreign word escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from celery_poison.basics.text import clean
from celery_poison.pipeline.backtest import Replayed, as_dict
from celery_poison.pipeline.blame import ALWAYS, Ask, anomalies
from celery_poison.pipeline.window import Window

_TOTALS = """
select coalesce(cast(sum(n) as bigint), 0) as attempts,
  coalesce(cast(sum(case when t.end = 'crashed' then n end) as bigint), 0) as deaths,
  coalesce(cast(sum(case when proof = 'cleared' then n end) as bigint), 0) as cleared,
  count(distinct task) as tasks, min(date) as since, max(date) as until
from {tallies} t where {recent} and {window}
"""
_DAYS = """
select date, count(case when kind = 'worker' then 1 end) as workers,
  count(case when kind = 'process' then 1 end) as processes,
  median(recovery_ms) as recovery_ms, max(recovery_ms) as longest_ms
from {incidents} where {recent} and {window} group by date order by date
"""


def gather(
    ask: Ask,
    blamed: Sequence[Mapping[str, Any]],
    *,
    window: Window = ALWAYS,
    replayed: Replayed | None = None,
    as_of: str = "",
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that the page shows, as plain data that JSON can hold.

    Args:
        ask: runs a query over ``{tallies}`` and ``{incidents}``.
        blamed: what blame says of the same window.
        as_of: of which history all of it is, in words.
        left_out: sentences on what the lake could not read.
    """
    totals, days = (ask(window.fill(query)).to_pylist() for query in (_TOTALS, _DAYS))
    replay = as_dict(replayed) if replayed else {"outcomes": [], "recommended": None}
    return {
        "window": {name: day and str(day) for name, day in asdict(window).items()},
        "as_of": as_of,
        "totals": as_json(totals[0]),
        "days": [as_json(row) for row in days],
        "blame": [as_json(row) for row in top(blamed, 12)],
        "anomalies": [as_json(row) for row in anomalies(blamed)[:50]],
        "backtest": replay["outcomes"],
        "recommended": replay["recommended"],
        "left_out": [*left_out],
    }


def top(blamed: Iterable[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the first ``count`` of each dimension."""
    taken: dict[str, list[Mapping[str, Any]]] = {}
    for row in blamed:
        taken.setdefault(row["dimension"], []).append(row)
    return [row for rows in taken.values() for row in rows[:count]]


def as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can hold it: days as text, and numbers that are none, too."""
    return {name: value if _is_plain(value) else str(value) for name, value in row.items()}


def _is_plain(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else value is None or isinstance(value, int | str)


_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<title>What kills the workers</title><style>{style}</style></head>
<body><main><h1>What kills the workers</h1>{body}</main></body></html>
"""
_STYLE = """
:root{color-scheme:light dark;--bad:#c23b3b;--warn:#b97210;--good:#2c7a5b}
@media(prefers-color-scheme:dark){:root{--bad:#e2706b;--warn:#e0a64e;--good:#66b894}}
body{max-width:1280px;margin:0 auto;padding:24px;font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h2{margin:32px 0 0}p{margin:4px 0 10px;opacity:.75}section{overflow-x:auto;margin-bottom:16px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
td,th{padding:4px 8px;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}
.w{text-align:left;white-space:normal;min-width:9em}
.guilty{color:var(--bad)}.suspicious{color:var(--warn)}.best{color:var(--good);font-weight:600}
"""
#: Which figures, what they are, and the columns.
_SECTIONS = (
    (
        "totals",
        "In all",
        "Of the attempts: deaths, and those of them that a trial cleared.",
        "attempts deaths cleared tasks",
    ),
    (
        "days",
        "Day by day",
        "Deaths of whole workers, and of single processes of a pool. Recovery: from noticing that a worker is"
        " dead to everything of it being put back, in milliseconds: the median and the longest.",
        "date workers processes recovery_ms longest_ms",
    ),
    (
        "blame",
        "Who is to blame",
        "Red is guilty: a trial proved it. Amber is suspicious: more deaths than chance explains, with all"
        " else taken into account, so that a bad task does not colour its host. Low and high are the bounds"
        " of times, to 95 %. Whom a trial cleared is not held against it.",
        "dimension key standing deaths expected times low high q alive causes"
        " before_deaths before_expected change_p",
    ),
    (
        "anomalies",
        "What has changed",
        "Of these, what kills more often than before the window, or did not run before.",
        "dimension key standing deaths before_deaths before_expected change_p",
    ),
    (
        "backtest",
        "What another policy would have cost",
        "The same history under other policies, the recommended one in green; innocents are in quarantine.",
        "says deaths worker_deaths lost_ms waiting blocked innocents",
    ),
)


def render(told: Mapping[str, Any]) -> str:
    """Return the page that shows what :func:`gather` found."""
    totals, best = told["totals"], told["recommended"] or {"says": "", "reasons": ()}
    span = f"{totals['since'] or '…'} to {totals['until'] or '…'} (UTC)"
    span += ", compared with the time before" if told["window"]["since"] else ""
    body = [f"<p>{_safe('; '.join(filter(None, (span, told['as_of']))))}</p>"]
    if told["left_out"]:
        body += ["<h2>What is missing here</h2>", _items(told["left_out"])]
    replayed = sorted(told["backtest"], key=lambda row: (row["innocents"], row["deaths"]))
    replayed = [{**row, "standing": "best" if row["says"] == best["says"] else ""} for row in replayed]
    figures = {**told, "totals": [totals], "backtest": replayed}
    for name, title, words, columns in _SECTIONS:
        body += [f"<h2>{title}</h2><p>{_safe(words)}</p>", _table(figures[name], columns.split())]
    return _PAGE.format(style=_STYLE, body="".join([*body, _items(best["reasons"])]))


def _items(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_safe(each)}</li>' for each in sentences)}</ul>"


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return rows as a table, without the columns in which there is nothing."""
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    texts = {name for name in names if any(isinstance(row.get(name), str) for row in rows)}
    kinds = {name: ' class="w"' if name in texts else "" for name in names}
    lines = ["".join(f"<th{kinds[name]}>{_safe(name.replace('_', ' '))}</th>" for name in names)]
    lines += ["".join(f"<td{kinds[name]}>{_number(row.get(name))}</td>" for name in names) for row in rows]
    marks = ["", *(row.get("standing", "") for row in rows)]
    drawn = (f'<tr class="{mark}">{line}</tr>' for mark, line in zip(marks, lines, strict=True))
    return f"<section><table>{''.join(drawn)}</table></section>" if rows else "none"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
    return _safe(f"{value:,}" if isinstance(value, int) else str("" if value is None else value))


def _safe(words: object) -> str:
    """Return words as HTML shows them; control characters, and those that turn the direction, as escapes."""
    return escape(clean(words))
