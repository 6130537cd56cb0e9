"""One page to look at, and the same figures as JSON (NEW-7).

``gather`` asks for the few hundred rows that are shown, by SQL that Spark and DuckDB read alike; ``render``
makes of them one file that loads nothing and runs nothing, with every foreign word escaped. First comes what
stands out; all that was compared is behind a fold.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from celery_poison.pipeline.backtest import Replayed, as_dict
from celery_poison.pipeline.blame import ALWAYS, PARTS, SIZES, Ask, anomalies, is_accused, is_worse_by_start
from celery_poison.pipeline.chart import Measure, figure, safe
from celery_poison.pipeline.cost import COST, says, span_of, spans_of, sums
from celery_poison.pipeline.grown import GREW, rows
from celery_poison.pipeline.window import Window

#: Of the whole window, and since when each release runs.
_TOTALS = """
select coalesce(cast(sum(n) as bigint), 0) as attempts,
  coalesce(cast(sum(case when t.end = 'crashed' then n end) as bigint), 0) as died,
  coalesce(cast(sum(case when proof = 'cleared' then n end) as bigint), 0) as cleared,
  count(distinct task) as tasks, min(date) as since, max(date) as until,
  release, substr(cast(min(t.since) as string), 1, 16) as first, grouping(release) as every
from {tallies} t where {recent} and {window} group by grouping sets ((), (release)) order by first
"""
#: Of the whole window, of each day, and of each day by cause.
_DEATHS = """
select date, cause, count(*) as deaths, count(case when kind = 'worker' then 1 end) as workers,
  count(case when kind = 'process' then 1 end) as processes,
  median(recovery_ms) as recovery_ms, max(recovery_ms) as longest_ms,
  grouping(date) + grouping(cause) as every
from (select date, coalesce(cause, 'unknown') as cause, kind, recovery_ms
  from {incidents} where {recent} and {window}) d
group by grouping sets ((), (date), (date, cause)) order by date, cause
"""
#: So many findings of each dimension are shown at once.
_SHOWN = 5
#: So many rows of what deaths cost.
_LISTED = 30
_KINDS = {
    "task_release": "release of a task",
    "shape": "form of arguments",
    "payload": "size of arguments",
    "fingerprint": "arguments",
}
_COUNTED = ("attempts", "died", "cleared", "tasks", "deaths", "workers", "processes")


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
        ask: runs a query over ``{tallies}``, ``{incidents}`` and ``{deaths}``.
        blamed: what blame says of the same window.
        as_of: of which history all of it is, in words.
        left_out: sentences on what the lake could not read.
    """
    tallied, deaths = (
        [as_json(row) for row in ask(window.fill(query)).to_pylist()] for query in (_TOTALS, _DEATHS)
    )
    replay = as_dict(replayed) if replayed else {"outcomes": [], "recommended": None}
    return {
        "window": {name: day and str(day) for name, day in asdict(window).items()},
        "as_of": as_of,
        "totals": _totals([*tallied, *deaths], blamed),
        "days": [row for row in deaths if row["every"] == 1],
        "causes": [row for row in deaths if not row["every"]],
        "releases": [row for row in tallied if not row["every"] and row["release"] is not None],
        "findings": _findings(blamed),
        "cost": sums(as_json(row) for row in ask(window.fill(COST)).to_pylist()),
        "grown": rows(ask(window.fill(GREW)).to_pylist()),
        "blame": [as_json(row) for row in top(blamed, 12)],
        "backtest": replay["outcomes"],
        "recommended": replay["recommended"],
        "left_out": [*left_out],
    }


def _totals(rows: Sequence[Mapping[str, Any]], blamed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    totals = dict.fromkeys(_COUNTED, 0) | {"since": None, "until": None, "recovery_ms": None}
    for row in rows:  # Spark has no row of a whole that is empty
        if row["every"] == (2 if "cause" in row else 1):
            totals |= {name: row[name] for name in totals if name in row}
    by_time = sum(row["deaths"] for row in blamed if row["dimension"] == "time")
    return totals | {"blamed": round(by_time), "compared": len(blamed)}


def _findings(blamed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is accused, or worse by start, with what to type next; what kills most is first."""
    changed = anomalies(blamed)
    found = [row for row in blamed if is_accused(row) or is_worse_by_start(row)]
    found.sort(key=lambda row: -row["deaths"])
    return [{**as_json(row), "command": command(row), "changed": row in changed} for row in found]


def command(row: Mapping[str, Any]) -> str:
    """Return the command to type next about an element of blame."""
    name, key, task = row["dimension"], str(row["key"]), row["task"] or ""
    poison = "celery -A proj poison"
    since = f" --since {str(row['since']).replace(' ', 'T')}+00:00" if row["since"] else ""
    if row["standing"] == "guilty":
        return f"{poison} block --fingerprint {shlex.quote(key)} --task {shlex.quote(task)} --expires 7d"
    if name == "time":
        begin, _, end = key.replace(":00", "").partition(" to ")
        hours = (f"{each.replace(' ', 'T')}:00+00:00" for each in (begin, end))
        return f"{poison} list --between {' '.join(hours)}" if end else f"{poison} list --since {key}"
    if name == "release":
        return f"{poison} list{since}"
    if name == "node":
        return f"{poison} incidents"
    own = {"fingerprint": "fingerprint", "queue": "queue"}
    wanted = f"{own.get(name, 'task')}={shlex.quote(key if name in own else task)}"
    if name == "host":
        wanted = f"worker=*@{shlex.quote(key)}/*"
    if name == "payload" and (least := SIZES.index(key.removeprefix(f"{task} "))):
        wanted += f" payload_bytes>={10 ** (least + 2)}"
    return f"{poison} list --filter {shlex.quote(wanted)}{since if name == 'task_release' else ''}"


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


#: Which figures, what they are, and the columns: what is behind a fold.
_FOLDED = (
    (
        "days",
        "Day by day",
        "Deaths of whole workers, and of single processes of a pool. Recovery: from noticing that a worker is"
        " dead to everything of it being put back, in milliseconds: the median and the longest.",
        "date deaths workers processes recovery_ms longest_ms",
    ),
    (
        "blame",
        "All that was compared",
        "The first twelve of each kind. Guilty: a trial proved it. Suspicious: more deaths than chance"
        " explains, with all else taken into account, so that a bad task does not colour its host. Low and"
        " high are the bounds of times, to 95 %. A death that a trial cleared does not count.",
        "dimension key standing deaths expected times low high q alive causes"
        " before_deaths before_expected change_p",
    ),
    (
        "backtest",
        "The cost of other policies",
        "The same history under other policies, the recommended one in green; innocents are in quarantine.",
        "says deaths worker_deaths lost_ms waiting blocked innocents",
    ),
)


def render(told: Mapping[str, Any]) -> str:
    """Return the page that shows what :func:`gather` found."""
    totals, best = told["totals"], told["recommended"] or {"says": "", "reasons": ()}
    span = f"{totals['since'] or '…'} to {totals['until'] or '…'} (UTC)"
    span = "; ".join(filter(None, (span, told["as_of"])))
    body = [f'<h1>{_headline(told)}</h1><p class="dim">{safe(span)}</p>']
    if told["left_out"]:
        missing = _items(told["left_out"])
        body.append(f'<aside class="suspicious"><h3>What is missing here</h3>{missing}</aside>')
    body += [_items(_counts(told)), figure(told["causes"], told["releases"], totals)]
    if told["cost"]["totals"]["runs"]:
        body += _cost(told)
    first = top(told["findings"], _SHOWN)
    body += ["<h2>Findings</h2>", *map(_finding, first)]
    if others := [row for row in told["findings"] if row not in first]:
        rows = "".join(map(_finding, others))
        body.append(f"<details><summary>{len(others):,} more findings</summary>{rows}</details>")
    body.append(_items(_compared(told)))
    if told["grown"]:
        body.append("<h2>What grew before deaths</h2><p>As the black boxes of workers tell: no verdict.</p>")
        body.append(_items(row["says"] for row in told["grown"]))
    if best["reasons"] and totals["deaths"]:
        body += [f"<h2>Policy: {safe(best['says'])}</h2>", _items(best["reasons"])]
    replayed = sorted(told["backtest"], key=lambda row: (row["innocents"], row["deaths"]))
    replayed = [{**row, "standing": "best" if row["says"] == best["says"] else ""} for row in replayed]
    figures = {**told, "backtest": replayed}
    for name, title, words, columns in _FOLDED:
        if figures[name]:
            table = _table(figures[name], columns.split())
            body.append(f"<details><summary>{title}</summary><p>{safe(words)}</p>{table}</details>")
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    return page.replace("{body}", "".join(body), 1)


_LOST = Measure("ms", "recorded run time thrown away a day", "Run time thrown away by day and cause", span_of)


def _cost(shown: Mapping[str, Any]) -> list[str]:
    """Return the cost of deaths: sentences, a picture, and a table by task."""
    cost = shown["cost"]
    lost = [{**row, **dict(zip(("lost", "again"), spans_of(row), strict=True))} for row in cost["tasks"]]
    table = _table(lost[:_LISTED], ["task", "cause", "runs", "lost", "again", "unknown"])
    rest = f"<p>… and {len(lost) - _LISTED:,} more</p>" if len(lost) > _LISTED else ""
    picture = figure(cost["days"], shown["releases"], shown["totals"], _LOST)
    fold = f"<details><summary>By task and cause</summary>{table}{rest}</details>"
    return ["<h2>What deaths cost</h2>", _items(says(cost["totals"])), picture, fold]


def _headline(told: Mapping[str, Any]) -> str:
    """Return how many died, and what stands out."""
    deaths, found = told["totals"]["deaths"], told["findings"]
    many = {name: sum(row["standing"] == name for row in found) for name in ("guilty", "suspicious")}
    words = ", ".join(f"{n} {name}" for name, n in many.items() if n) or "nothing stands out"
    return f"{_plural(deaths, 'death')}: {words}" if deaths else "Nothing died"


def _counts(told: Mapping[str, Any]) -> list[str]:
    """Return how many died, as each part of the page counts them, and why the numbers differ."""
    totals = told["totals"]
    ran = f"{_plural(totals['attempts'], 'attempt')} of {_plural(totals['tasks'], 'task')} ended"
    if not totals["deaths"]:
        return [ran]
    parts = (_plural(totals["workers"], "whole worker"), _plural(totals["processes"], "single process", "es"))
    words = [f"{ran}; of these {totals['died']:,} in a death, of which trials cleared {totals['cleared']:,}"]
    words.append(f"{_plural(totals['deaths'], 'death')}: {', '.join(parts)}")
    if totals["blamed"] != totals["deaths"]:
        words.append(
            f"compared are {_plural(totals['blamed'], 'death')}: a message that died again counts once, and a"
            " death whose suspects were all cleared, or that ended no task, not at all"
        )
    was = next((row["deaths"] for row in told["backtest"] if row["says"] == "as it is"), totals["deaths"])
    if was != totals["deaths"]:
        fewer = "those of messages whose task id is known"
        more = "a message that was not convicted yet dies again until it is"
        words.append(f"replayed are {_plural(was, 'death')}: {fewer if was < totals['deaths'] else more}")
    return words


def _compared(told: Mapping[str, Any]) -> list[str]:
    """Return what the findings are among, and what was compared with what; or that nothing was."""
    totals, since = told["totals"], told["window"]["since"]
    if not totals["compared"]:
        return ["Nothing was compared: there is no death that anything could be to blame for."]
    rest = totals["compared"] - len(told["findings"])
    many = f"{rest:,} other" if told["findings"] else f"All {rest:,}"
    words = [f"{many} tasks, hosts and the like that were in a death are unremarkable"]
    if not since:
        return [*words, "Days were not compared with earlier ones: --since 7d does that."]
    if any(row["before_deaths"] or row["change_p"] is not None for row in told["blame"]):
        return [*words, f"All from {since} on, compared with the time before."]
    return [*words, f"Nothing was compared with the time before {since}: the lake has no entry of it."]


def _finding(row: Mapping[str, Any]) -> str:
    standing = row["standing"] if is_accused(row) else "slower"
    marks = "more deaths by start" if standing == "slower" else standing
    marks += ", new or worse than before" if row["changed"] else ""
    key, task = str(row["key"]), row["task"]
    of = "of" if row["dimension"] in PARTS else "mostly"
    named = f" <span>{of} {safe(task)}</span>" if task and not key.startswith(task) else ""
    says = row["says"].removeprefix(f"{standing}: ") + (f" ({row['causes']})" if row["causes"] else "")
    return (
        f'<article class="{standing}"><h3><span>{_KINDS.get(row["dimension"], row["dimension"])}</span>'
        f" {safe(key)}{named}</h3><b>{marks}</b><p>{safe(says)}</p>"
        f"<code>{safe(row['command'])}</code></article>"
    )


def _plural(count: int, name: str, ending: str = "s") -> str:
    return f"{count:,} {name}{'' if count == 1 else ending}"


def _items(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{safe(each)}</li>' for each in sentences)}</ul>"


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return rows as a table, without the columns in which there is nothing."""
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    texts = {name for name in names if any(isinstance(row.get(name), str) for row in rows)}
    kinds = {name: ' class="w"' if name in texts else "" for name in names}
    lines = ["".join(f"<th{kinds[name]}>{safe(name.replace('_', ' '))}</th>" for name in names)]
    lines += ["".join(f"<td{kinds[name]}>{_number(row.get(name))}</td>" for name in names) for row in rows]
    marks = ["", *(row.get("standing", "") for row in rows)]
    drawn = (f'<tr class="{mark}">{line}</tr>' for mark, line in zip(marks, lines, strict=True))
    return f"<section><table>{''.join(drawn)}</table></section>"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"
    return safe(f"{value:,}" if isinstance(value, int) else str("" if value is None else value))
