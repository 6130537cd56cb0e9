"""One page to look at, and the same figures as JSON (NEW-7).

``gather`` asks for the few hundred rows that are shown, by SQL that Spark and DuckDB read alike; ``render``
makes of them one file that loads nothing and runs nothing, with every foreign word escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from html import escape
from typing import Any

from celery_poison.pipeline.backtest import Replayed, as_dict, as_recommended
from celery_poison.pipeline.blame import ALWAYS, Ask, filled
from celery_poison.pipeline.window import Window
from celery_poison.text import clean

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
    replayed: Replayed | None = None,
    as_of: str = "",
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that the page shows, as plain data that JSON can hold.

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
        "blame": [as_json(row) for row in top(blamed, 12)],
        "anomalies": [as_json(row) for row in changed[:50]],
        "backtest": [as_dict(told) for told in replayed.outcomes] if replayed else [],
        "recommended": as_recommended(replayed.best) if replayed else None,
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
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return int(value) if type(value).__name__ == "Decimal" else value


_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#69727f;--page:#fbfbf9;--card:#fff;--rule:#e3e4e0;
--bad:#c23b3b;--warn:#d98a1f;--good:#2c7a5b;--calm:#4a6fa5}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--dim:#9aa3ad;--page:#14171b;--card:#1c2026;--rule:#2d333b;
--bad:#e2706b;--warn:#e0a64e;--good:#66b894;--calm:#86a8d8}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;
overflow-wrap:anywhere}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}h1{margin:0 0 4px;font-size:26px}
h2{font-size:18px;margin:34px 0 4px}h3{font-size:15px;margin:18px 0 2px}p{margin:2px 0 10px;color:var(--dim)}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 18px;
overflow-x:auto}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}.tile{flex:1 1 130px;background:var(--card);
border:1px solid var(--rule);border-radius:10px;padding:10px 14px}.tile b{display:block;font-size:22px}
.tile span{color:var(--dim);font-size:13px}
.bars{display:flex;align-items:flex-end;gap:2px;height:150px;border-bottom:1px solid var(--dim)}
.bars div{flex:1 1 3px;height:100%;display:flex;flex-direction:column-reverse}
.bad{background:var(--bad)}.warn{background:var(--warn)}.good{background:var(--good)}
.span{position:relative;width:130px;height:14px;background:linear-gradient(var(--dim),var(--dim)) no-repeat;
background-size:1px 100%;background-position:var(--one)}.span i,.span b{position:absolute}
.span i{top:3px;height:8px;background:var(--calm);opacity:.4}
.span b{width:8px;height:8px;top:3px;margin-left:-4px;border-radius:4px;background:var(--good)}
.guilty .span b{background:var(--bad)}.suspicious .span b{background:var(--warn)}
table{border-collapse:collapse;width:100%;font-size:13px}
td,th{padding:4px 8px;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}
td.w{white-space:normal;min-width:11em}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
tr.best td{font-weight:600;color:var(--good)}li{margin:2px 0}
"""
_TITLES = {
    "fingerprint": "Arguments (fingerprints)",
    "task": "Tasks",
    "shape": "Forms of arguments",
    "payload": "Payload sizes",
    "task_release": "Tasks under one release",
    "release": "Releases",
    "queue": "Queues",
    "host": "Hosts",
}


def render(told: Mapping[str, Any]) -> str:
    """Return the page that shows what :func:`gather` found."""
    body = [_head(told), _deaths(told["days"]), _blame(told), _hours(told["hours"])]
    body += [_anomalies(told["anomalies"]), _recovery(told["recovery"]), _backtest(told)]
    # Nothing may be loaded from anywhere, whatever a task is called.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>What kills the workers</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _safe(words: object) -> str:
    """Return words as HTML shows them; control characters, and those that turn the direction, as escapes."""
    return escape(clean(words))


def _section(title: str, words: str, inside: str) -> str:
    return f"<h2>{_safe(title)}</h2><p>{_safe(words)}</p><section>{inside}</section>"


def _items(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_safe(each)}</li>' for each in sentences)}</ul>"


def _head(told: Mapping[str, Any]) -> str:
    totals = told["totals"]
    tiles = "".join(
        f'<div class="tile"><b>{_number(totals[name])}</b><span>{words}</span></div>'
        for name, words in (
            ("attempts", "attempts"),
            ("deaths", "of them ended in a death"),
            ("cleared", "cleared by a trial"),
            ("tasks", "tasks"),
        )
    )
    span = f"{totals['since'] or '…'} to {totals['until'] or '…'} (UTC)"
    span += ", compared with the time before" if told["window"]["since"] else ""
    of = "; ".join(filter(None, (span, told["as_of"])))
    head = f'<h1>What kills the workers</h1><p>{_safe(of)}</p><div class="tiles">{tiles}</div>'
    missing = "What the lake could not read, or never got."
    return head + (
        _section("What is missing here", missing, _items(told["left_out"])) if told["left_out"] else ""
    )


def _deaths(rows: Sequence[Mapping[str, Any]]) -> str:
    count = {(row["date"], row["kind"]): row["n"] for row in rows}
    days = {}
    for day in sorted({row["date"] for row in rows if row["date"]}):
        days[day] = {"bad": count.get((day, "worker"), 0), "warn": count.get((day, "process"), 0)}
    words = "Red: whole workers. Amber: single processes of a pool."
    return _section("Deaths over time", words, _bars("Deaths of each day", days))


def _recovery(rows: Sequence[Mapping[str, Any]]) -> str:
    days = {row["date"]: {"good": row["median"], "warn": row["longest"] - row["median"]} for row in rows}
    words = (
        "From noticing that a worker is dead to everything of it being put back, in milliseconds: the median"
        " of each day, and above it, in amber, the longest."
    )
    return _section("How long recovery takes", words, _bars("Recovery time in milliseconds", days))


def _bars(title: str, days: Mapping[str, Mapping[str, float]]) -> str:
    """Draw for each day one bar upon the other; the names of the parts are their classes."""
    if not days:
        return "none"
    highest = max(sum(parts.values()) for parts in days.values()) or 1
    columns = []
    for day, parts in days.items():
        drawn = "".join(
            f'<i class="{kind}" style="height:{100 * value / highest:.1f}%"></i>'
            for kind, value in parts.items()
        )
        figures = " + ".join(f"{value:g}" for value in parts.values())
        columns.append(f'<div title="{_safe(day)}: {figures}">{drawn}</div>')
    scale = f"{min(days)} to {max(days)}; the highest: {_number(highest)}"
    bars = f'<div class="bars" role="img" aria-label="{_safe(title)}">{"".join(columns)}</div>'
    return f"{bars}<p>{_safe(scale)}</p>"


def _blame(told: Mapping[str, Any]) -> str:
    names = ["key", "standing", "interval", "deaths", "expected", "times", "q", "alive", "causes"]
    names += ["before_deaths", "before_expected", "change_p"] if told["window"]["since"] else []
    most = max([min(float(row["times"]), 1e6) for row in told["blame"]], default=1.0)
    decades = max(2, math.ceil(math.log10(most)) + 1)
    parts = []
    for dimension, title in _TITLES.items():
        rows = [row for row in told["blame"] if row["dimension"] == dimension]
        if rows:
            parts.append(f"<h3>{title}</h3>{_table(rows, names, decades=decades)}")
    words = (
        "Red is guilty: a trial proved it. Amber is suspicious: more deaths than chance explains, with all"
        " else taken into account, so that a bad task does not colour its host. Green: nothing against it."
        " The dot is how many times the deaths that are expected, the bar where that lies to 95 %, the line"
        f" at once as many; from a tenth to {10 ** (decades - 1):g} times, by magnitude. Whom a trial cleared"
        " is not held against it."
    )
    return _section("Who is to blame", words, "".join(parts) or "nobody")


def _interval(row: Mapping[str, Any], decades: int) -> str:
    """Draw the interval of an element, and its rate within it, by magnitude from a tenth on."""

    def place(value: Any) -> float:
        return 100 * min(1.0, math.log10(max(min(float(value), 1e9), 0.1) / 0.1) / decades)

    times, low, high = (place(row[name]) for name in ("times", "low", "high"))
    bar = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i><b style="left:{times:.1f}%"></b>'
    return f'<div class="span" style="--one:{100 / decades:.1f}% 0" title="{_safe(row["says"])}">{bar}</div>'


def _hours(rows: Sequence[Mapping[str, Any]]) -> str:
    tasks: dict[str, dict[int, int]] = {}
    for row in rows:
        tasks.setdefault(row["task"] or "?", {})[row["hour"]] = row["n"]
    named = sorted(tasks, key=lambda name: -sum(tasks[name].values()))[:15]
    most = max([many for name in named for many in tasks[name].values()], default=0)
    lines = [f"<tr><th></th>{''.join(f'<th>{hour:02}</th>' for hour in range(24))}</tr>"]
    for name in named:
        # One death is to be seen, whatever the most of them is.
        cells = "".join(
            f'<td style="background:color-mix(in srgb,var(--bad) {12 + 88 * many / most:.0f}%,transparent)">'
            f"{many}</td>"
            if (many := tasks[name].get(hour))
            else "<td></td>"
            for hour in range(24)
        )
        lines.append(f'<tr><td class="w">{_safe(name)}</td>{cells}</tr>')
    words = "Deaths by task and hour of the day (UTC), without those who were cleared."
    return _section("When", words, f"<table>{''.join(lines)}</table>")


def _anomalies(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("kind", "key", "date", "value", "usual", "times", "says")
    words = "Drifts and waves, the largest first."
    return _section("What has changed", words, _table(rows, names)) if rows else ""


def _backtest(told: Mapping[str, Any]) -> str:
    best = told["recommended"]
    if not best:
        return ""
    names = ("says", "deaths", "worker_deaths", "lost_s", "waiting", "blocked", "innocents")
    shown = [{**row, "lost_s": round(row["lost_ms"] / 1000)} for row in told["backtest"]]
    shown.sort(key=lambda row: (row["innocents"], row["deaths"]))
    found = f"<p>Recommended (green): <b>{_safe(best['says'])}</b></p>{_items(best['reasons'])}"
    words = "The same history under other policies; innocents are in quarantine."
    return _section("What another policy would have cost", words, found + _table(shown, names, best["says"]))


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], best: str = "", decades: int = 2) -> str:
    kinds = {name: ' class="n"' if isinstance(rows[0].get(name), (int, float)) else "" for name in names}
    kinds |= dict.fromkeys({"says", "key", "causes"} & kinds.keys(), ' class="w"')
    heads = "".join(f"<th{kind}>{_safe(name.replace('_', ' '))}</th>" for name, kind in kinds.items())
    lines = []
    for row in rows:
        drawn = {name: _number(row.get(name)) for name in names}
        if "interval" in drawn:
            drawn["interval"] = _interval(row, decades)
        cells = "".join(f"<td{kinds[name]}>{words}</td>" for name, words in drawn.items())
        mark = "best" if row.get("says") == best else row.get("standing", "")
        lines.append(f'<tr class="{mark}">{cells}</tr>')
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
    return _safe(f"{value:,}" if isinstance(value, int) else str("" if value is None else value))
