"""The page: one file, no network, every foreign word escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_poison.pipeline.backtest.grid import AS_IT_WAS, say
from celery_poison.pipeline.report import svg
from celery_poison.pipeline.report.safe import safe

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#69727f;--page:#fbfbf9;--card:#fff;--rule:#e3e4e0;
--bad:#c23b3b;--warn:#d98a1f;--good:#2c7a5b;--calm:#4a6fa5}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--dim:#9aa3ad;--page:#14171b;--card:#1c2026;--rule:#2d333b;
--bad:#e2706b;--warn:#e0a64e;--good:#66b894;--calm:#86a8d8}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;
overflow-wrap:anywhere}
main{max-width:980px;margin:0 auto;padding:28px 20px 60px}h1{margin:0 0 4px;font-size:26px}
h2{font-size:18px;margin:34px 0 4px}h3{font-size:15px;margin:18px 0 2px}p{margin:2px 0 10px;color:var(--dim)}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 18px}
section{overflow-x:auto}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}.tile{flex:1 1 130px;background:var(--card);
border:1px solid var(--rule);border-radius:10px;padding:10px 14px}.tile b{display:block;font-size:22px}
.tile span{color:var(--dim);font-size:13px}svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .small{font-size:11px;fill:var(--dim)}
.axis{stroke:var(--dim)}.grid{stroke:var(--rule)}.worker{fill:var(--bad)}.process{fill:var(--warn)}
.interval{fill:var(--calm);fill-opacity:.3}svg circle.guilty,svg circle.longest{fill:var(--bad)}
svg circle.suspicious{fill:var(--warn)}
svg circle.unremarkable,svg .median{fill:var(--good)}.hot{fill:var(--bad)}
.cold{fill:var(--rule)}svg .named{paint-order:stroke;stroke:var(--card);stroke-width:4px}
svg rect.longest{fill:var(--bad)}.curve{fill:none;stroke-width:2}.curve.median{stroke:var(--good);fill:none}
.curve.longest{stroke:var(--bad)}.curve.front{stroke:var(--dim);stroke-dasharray:4 4}.tried{fill:var(--calm)}
.untried{fill:var(--warn)}.best{fill:var(--good);stroke:var(--ink)}table{border-collapse:collapse;width:100%;
font-size:13px}td,th{padding:4px 8px;text-align:left;border-bottom:1px solid var(--rule);white-space:nowrap}
td.w{white-space:normal;min-width:14em}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}tr.best td{font-weight:600}li{margin:2px 0}
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
_COLUMNS = (
    "key",
    "standing",
    "deaths",
    "expected",
    "times",
    "low",
    "high",
    "p",
    "q",
    "alive",
    "causes",
)
_BEFORE = ("before_deaths", "before_expected", "change_p")


def render(told: Mapping[str, Any]) -> str:
    """Return the page that shows what :func:`~celery_poison.pipeline.report.gather.gather` found."""
    body = [_head(told), _left_out(told["left_out"]), _incidents(told), _blame(told), _hours(told)]
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
    return f'<h1>What kills the workers</h1><p>{safe(of)}</p><div class="tiles">{tiles}</div>'


def _left_out(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{safe(each)}</li>" for each in sentences)
    return f"<h2>What is missing here</h2><section><ul>{items}</ul></section>"


def _incidents(told: Mapping[str, Any]) -> str:
    days = sorted({row["date"] for row in told["days"] if row["date"]})
    count = {(row["date"], row["kind"]): row["n"] for row in told["days"]}
    series = {kind: [count.get((day, kind), 0) for day in days] for kind in ("worker", "process")}
    drawn = svg.stacked("Deaths for each day", days, series)
    return _section("Deaths over time", "Whole workers, and single processes of a pool.", drawn)


def _blame(told: Mapping[str, Any]) -> str:
    parts = []
    for dimension, title in _TITLES.items():
        rows = [row for row in told["blame"] if row["dimension"] == dimension]
        if rows:
            drawn = svg.ranking(f"{title}: how many times the deaths that are expected", rows)
            figures = _table(rows, (*_COLUMNS, *(_BEFORE if told["window"]["since"] else ())))
            parts.append(f"<h3>{title}</h3>{drawn}<details><summary>Figures</summary>{figures}</details>")
    words = (
        "Red is guilty: a trial proved it. Amber is suspicious: more deaths than chance explains, with all"
        " else taken into account, so that a bad task does not colour its host. Green: nothing against it."
        " The dot is how many times the deaths that are expected, the bar where that lies to 95 %; at the"
        " right deaths, and those that are expected. Whom a trial cleared is not held against it."
    )
    return _section("Who is to blame", words, "".join(parts))


def _hours(told: Mapping[str, Any]) -> str:
    total: dict[str, float] = {}
    for row in told["hours"]:
        total[row["task"] or "?"] = total.get(row["task"] or "?", 0) + row["n"]
    names = sorted(total, key=lambda name: -total[name])[:15]
    count = {(row["task"] or "?", row["hour"]): row["n"] for row in told["hours"]}
    drawn = svg.heat("Deaths by task and hour", names, lambda name, hour: count.get((name, hour), 0))
    most = max((number for (name, _), number in count.items() if name in names), default=0)
    words = "Deaths by task and hour of the day (UTC), without those who were cleared."
    return _section("When", f"{words} The darkest: {most}." if most else words, drawn)


def _recovery(rows: Sequence[Mapping[str, Any]]) -> str:
    days = [row["date"] for row in rows]
    series = {name: [row[name] for row in rows] for name in ("median", "longest")}
    drawn = svg.lines("Recovery time in milliseconds", days, series, "ms")
    words = "From noticing that a worker is dead to everything of it being put back, in milliseconds."
    return _section("How long recovery takes", words, drawn)


def _backtest(told: Mapping[str, Any]) -> str:
    rows, best = told["backtest"], told["recommended"]
    if not rows or not best:
        return ""
    drawn = svg.tradeoff("Deaths and innocents for each policy", rows, best["says"], say(AS_IT_WAS))
    reasons = "".join(f"<li>{safe(each)}</li>" for each in best["reasons"])
    names = ("says", "deaths", "worker_deaths", "lost_s", "waiting", "blocked", "innocents")
    shown = [{**row, "lost_s": round(row["lost_ms"] / 1000)} for row in rows]
    shown.sort(key=lambda row: (row["innocents"], row["deaths"]))
    inside = (
        f"{drawn}<p>Recommended (green): <b>{safe(best['says'])}</b></p><ul>{reasons}</ul>"
        f"<details><summary>All policies</summary>{_table(shown, names, best['says'])}</details>"
    )
    words = (
        "The same history under other policies. Amber: without trials. Lower and further left is better; the"
        " dashed line joins those of which no other is better in both."
    )
    return _section("What another policy would have cost", words, inside)


def _anomalies(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("kind", "key", "date", "value", "usual", "times", "says")
    return (
        _section("What has changed", "Drifts and waves, the largest first.", _table(rows, names))
        if rows
        else ""
    )


def _section(title: str, words: str, inside: str) -> str:
    return f"<h2>{safe(title)}</h2><p>{safe(words)}</p><section>{inside}</section>"


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], best: str = "") -> str:
    heads = "".join(f"<th{_kind(rows, name)}>{safe(name.replace('_', ' '))}</th>" for name in names)
    lines = []
    for row in rows:
        mark = ' class="best"' if best and row.get("says") == best else ""
        cells = "".join(f"<td{_kind(rows, name)}>{_number(row.get(name))}</td>" for name in names)
        lines.append(f"<tr{mark}>{cells}</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _kind(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    if name == "says":
        return ' class="w"'
    return ' class="n"' if rows and isinstance(rows[0].get(name), (int, float)) else ""


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
    return safe(f"{value:,}" if isinstance(value, int) else str("" if value is None else value))
