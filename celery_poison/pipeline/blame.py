"""Who is suspected of killing workers, and who was proven to (NEW-7).

Guilty is what a trial proved: a message that died again, alone. Only arguments, by their fingerprint, can be
that. Tasks, hosts, releases and the like are never on trial: of them
:mod:`celery_poison.pipeline.death_model` says how many deaths more than expected they had, and how likely
that is by chance.

The queries are plain SQL that Spark and DuckDB read alike; ``ask`` runs them. docs/pipeline-tables.md has
every word.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from celery_poison.pipeline.death_model import (
    FALSE_SHARE,
    LEAST_DEATHS,
    Judged,
    RunGroups,
    chance_of_change,
    judge,
)
from celery_poison.pipeline.dispersion import Codes
from celery_poison.pipeline.outages import with_times
from celery_poison.pipeline.tables.attempts import LONGEST_MS
from celery_poison.pipeline.window import SIZE, Window

ALWAYS = Window()

#: What may be suspected. ``shape`` and ``payload`` are those of one task, ``task_release`` its releases.
#: ``node`` is the machine below a host, where the workers know it (``poison_node``).
DIMENSIONS = (
    *("time", "fingerprint", "task", "shape", "payload", "task_release", "release", "queue", "node", "host"),
)
#: Those of which each element belongs to one task.
PARTS = ("fingerprint", "shape", "payload", "task_release")
#: Those whose elements differ by nature.
SIBLINGS = ("time", "release", "queue", "node", "host")
#: A release runs on all hosts: what only one of them shows is that host's bad week.
WIDE = {"release": "host", "task_release": "host"}
#: Runs a query over ``{tallies}``, ``{deaths}``, ``{kin}`` and ``{fingerprints}``, and returns its few rows.
Ask = Callable[[str], Any]

SIZES = ("under 1 kB", "1-10 kB", "10-100 kB", "100 kB-1 MB", "1-10 MB", "10-100 MB", "100 MB or more")
IS_ALIVE = "(r.end = 'rolled_back' or r.end = 'finished' and coalesce(outcome, '') <> 'lost')"
#: 1 for a death alone of a message that had died before: it was a candidate, and this was its trial.
_TRIED = "(case when blame = 'exact' and crashes >= 2 then 1 else 0 end)"

#: One row for each message that died and was not cleared: where it died first, and how much of that death is
#: its own. A death that several may be guilty of is divided among them; dying again, on trial or after a
#: retry, is the same misfortune and not counted again.
MISFORTUNES = f"""
with suspects as (
  select coalesce(id, token) as message, task, queue, host, release, shape, fingerprint, cause, proof,
    blame, crashes, {SIZE} as size, {{recent}} as recent, date, hour(ended_at) as hour, ended_at, seq,
    sum(case when proof = 'proven' then 1 else 0 end) over (partition by death) as proven,
    sum(case when proof = 'cleared' then 0 else 1 end) over (partition by death) as held
  from {{deaths}} where {{window}}
), shared as (
  select *, case when proof = 'cleared' or proven > 0 and proof <> 'proven' then 0
    else cast(1 as double) / (case when proven > 0 then proven else held end) end as share from suspects
), counted as (
  select *, max(share) over (partition by message) as deaths,
    row_number() over (partition by message order by ended_at, seq) as nth from shared where share > 0
), misfortunes as (select * from counted where nth = 1)"""

#: Runs that have everything in common, counted. Forms, sizes and the task itself are told of tasks with a
#: death only, fingerprints where two messages of one died or a trial proved one: to the model all others are
#: alike. Rounded, since thirds add up to another last digit in each order.
CELLS = f"""{MISFORTUNES}, bearers as (
  select fingerprint from counted where fingerprint is not null
  group by fingerprint having count(distinct message) > 1 or max({_TRIED}) = 1
), troubled as (select distinct task as died from misfortunes
), runs as (
  select task, queue, host, release, shape, size, {{recent}} as recent, date, runtime_ms as ms,
    case when {IS_ALIVE} then n else 0 end as alive, since, fingerprints as seen
  from {{tallies}} r where {{window}}
), borne as (
  select task, queue, host, release, shape, {SIZE} as size, fingerprint, {{recent}} as recent, date,
    least(coalesce(runtime_ms, 0), {LONGEST_MS}) as ms, case when {IS_ALIVE} then 1 else 0 end as alive
  from {{kin}} r join bearers using (fingerprint) where {{window}}
), every as (
  select task, queue, host, release, shape, size, null as fingerprint, null as cause, recent, date,
    null as hour, 0 as deaths, ms, alive, since, seen from runs
  union all select task, queue, host, release, shape, size, fingerprint, null, recent, date,
    null, 0, ms, alive, null, 0 from borne
  union all select task, queue, host, release, shape, size, null, null, recent, date,
    null, 0, -ms, -alive, null, 0 from borne
  union all select task, queue, host, release, shape, size, b.fingerprint, cause, recent, date,
    hour, deaths, 0, 0, null, 0 from misfortunes m left join bearers b on m.fingerprint = b.fingerprint
)
select died as task, queue, host, release, case when died is not null then shape end as shape,
  case when died is not null then size end as size, cast(fingerprint as string) as fingerprint,
  cast(cause as string) as cause, recent, case when recent then cast(date as string) end as date,
  case when recent then cast(hour as int) end as hour, cast(round(sum(deaths), 9) as double) as deaths,
  cast(sum(ms) as double) as ms, cast(sum(alive) as bigint) as alive,
  substr(cast(min(since) as string), 1, 16) as since, cast(sum(seen) as bigint) as seen
from every e left join troubled t on e.task = t.died
group by all
"""

#: Fingerprints of which a trial proved a message guilty, and that nobody ever saw end alive or be cleared.
GUILTY = f"""
select fingerprint, count(distinct coalesce(id, token)) as messages
from {{deaths}} d
join (select fingerprint from {{fingerprints}} where alive = 0 and cleared = 0) f using (fingerprint)
where {_TRIED} = 1 and {{recent}} and {{window}} group by fingerprint
"""
RUNS_ALIVE = f"select cast(sum(n) as bigint) as n from {{tallies}} r where {IS_ALIVE}"
#: On which machine each worker began.
STARTED = """
select worker, note, cast(cast(n.at as date) as string) as date from {noted} n
where event = 'worker_started' and note like 'on %' and worker is not null order by n.at, seq
"""


_WORDS = ("dimension", "key", "standing", "says", "causes", "first_seen", "since", "task")
_NUMBERS = ("deaths", "elsewhere", "expected", "times", "low", "high", "p", "q", "hours")
_OF_STARTS = ("start_times", "start_low", "start_high", "start_q")
#: Of the table ``blame``.
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _WORDS),
        *((name, pa.int64()) for name in ("proven", "alive")),
        *((name, pa.float64()) for name in (*_NUMBERS, *_OF_STARTS)),
        *((name, pa.float64()) for name in ("before_deaths", "before_expected", "change_p")),
        ("told", pa.bool_()),
    ]
)


def blame(ask: Ask, window: Window = ALWAYS, cause: str | None = None) -> list[dict[str, Any]]:
    """Return every element that was in a death of the window, of each dimension the most suspicious first.

    Args:
        cause: count deaths of this cause only; those of other causes are none then.

    Returns:
        For each the columns of the table ``blame``, see docs/pipeline-tables.md.
    """
    # In one order, whatever Spark's tasks end in: the model adds up, and takes the first of equals.
    table = ask(window.fill(CELLS))
    cells = table.sort_by([(name, "ascending") for name in table.column_names]).to_pandas()
    if cause is not None:
        cells = cells[cells["cause"].isna() | (cells["cause"] == cause)]
    if cells.empty:
        return []
    guilty = dict(zip(*ask(window.fill(GUILTY)).to_pydict().values(), strict=True))
    seen = int(cells.loc[cells["recent"], "seen"].sum())
    cells = _with_nodes(with_times(cells), ask(STARTED).to_pylist(), window)
    sizes = cells["size"].map(dict(enumerate(SIZES)))
    # An outage stands out without any one task: in it nothing speaks against a release of one task.
    is_outage = cells["date"].notna() & (cells["time"] != cells["date"])
    cells = cells.assign(
        payload=cells["task"] + " " + sizes,
        shape=cells["task"] + "(" + cells["shape"] + ")",
        task_release=(cells["task"] + " @ " + cells["release"]).mask(is_outage),
    )
    numbered = {name: pd.factorize(cells[name]) for name in DIMENSIONS if name in cells}
    summed = {name: _summed(cells.assign(code=codes)) for name, (codes, _) in numbered.items()}
    rows = []
    for told in judge(_window(cells, numbered, seen, guilty)):
        key = numbered[told.dimension][1][told.code]
        rows.append(_row(told, key, summed[told.dimension], guilty, window.since is not None))
    rows.sort(key=_order)
    return rows


def _with_nodes(cells: pd.DataFrame, started: Iterable[Mapping[str, str]], window: Window) -> pd.DataFrame:
    """Add the ``node`` on which each host was on each day, where any worker said so when it started."""
    moves: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for row in started:
        name = row["worker"].rpartition("/")[0] or row["worker"]
        moves[name.rpartition("@")[2]].append((row["date"], row["note"].removeprefix("on ")))
    if not moves:
        return cells
    before = str(window.since - timedelta(1)) if window.since else ""

    def node(host: str, date: str) -> str | None:
        known = moves.get(host, [("", None)])
        return known[max(0, bisect_right(known, date, key=lambda each: each[0]) - 1)][1]

    pairs = zip(cells["host"], cells["date"].fillna(before), strict=True)
    return cells.assign(node=[node(*pair) for pair in pairs])


def _window(
    cells: pd.DataFrame, numbered: Mapping[str, tuple[Codes, Any]], seen: int, guilty: Mapping[str, int]
) -> RunGroups:
    """Return the cells of the window; what one message alone was proven to do may be a task's doing."""
    recent = cells["recent"].to_numpy(dtype=bool)
    several = [n for n, key in enumerate(numbered["fingerprint"][1]) if guilty.get(key, 0) > 1]
    return RunGroups(
        deaths=cells["deaths"].to_numpy()[recent],
        seconds=np.maximum(cells["ms"].to_numpy()[recent], 0.0) / 1000,
        starts=np.maximum((cells["alive"] + cells["deaths"]).to_numpy(dtype=float)[recent], 0.0),
        task=numbered["task"][0][recent],
        codes={name: codes[recent] for name, (codes, _) in numbered.items() if name != "task"},
        seen={"fingerprint": seen},
        known={"fingerprint": several},
        parts=PARTS,
        blocks={name: _blocks(cells[recent], name) for name in ("host", "task")},
        siblings=SIBLINGS,
        wide=WIDE,
        # Numbered, not measured: one clock that was wrong by years makes no trend.
        days=np.unique(cells["date"][recent], return_inverse=True)[1].astype(float),
    )


def _blocks(cells: pd.DataFrame, name: str) -> Codes:
    """Number the days of each element of a dimension."""
    numbers: Codes = cells.groupby([name, "time"], dropna=False).ngroup().to_numpy()
    return numbers


class _Sums(NamedTuple):
    """Of the elements of a dimension, by number.

    Attributes:
        of: sums of deaths, run time and runs that ended alive, by number and whether of the window.
        causes: what it died of, the commonest first.
        tasks: that which had most of its deaths.
        first: when it ran first.
    """

    of: Mapping[Any, Any]
    causes: Mapping[int, list[str]]
    tasks: Mapping[int, str]
    first: Mapping[int, str]


def _summed(cells: pd.DataFrame) -> _Sums:
    """Return the sums of each ``code``."""
    sums = cells.groupby(["code", "recent"])[["deaths", "ms", "alive"]].sum().to_dict("index")
    causes = defaultdict(list)
    for (code, cause), n in _most(cells, "cause"):
        causes[code].append(f"{cause} {few(n)}")
    tasks = {code: task for (code, task), _ in reversed(_most(cells, "task"))}
    return _Sums(sums, causes, tasks, cells[cells["since"].notna()].groupby("code")["since"].min().to_dict())


def _most(cells: pd.DataFrame, name: str) -> list[Any]:
    died = cells[cells["recent"]].groupby(["code", name])["deaths"].sum()
    return [*died[died > 0].sort_values(ascending=False, kind="stable").items()]


def _row(told: Judged, key: str, sums: _Sums, guilty: Mapping[str, int], compared: bool) -> dict[str, Any]:
    """Return a row of the table, of the sums of its dimension."""
    none = {"deaths": 0.0, "ms": 0.0, "alive": 0}
    now, earlier = (sums.of.get((told.code, recent), none) for recent in (True, False))
    proven = guilty.get(key, 0) if told.dimension == "fingerprint" else 0
    row = {
        "dimension": told.dimension,
        "key": key,
        "standing": "guilty" if proven else "suspicious" if told.explains else "unremarkable",
        "proven": proven,
        "deaths": round(told.deaths, 3),
        "elsewhere": round(told.elsewhere, 3),
        "expected": told.expected,
        "times": told.deaths / told.expected,
        **{name: getattr(told, name) for name in ("low", "high", "p", "q")},
        "alive": round(now["alive"]),
        "hours": now["ms"] / 3_600_000,
        "causes": ", ".join(sums.causes.get(told.code, ())[:3]),
        "since": sums.first.get(told.code),
        "task": sums.tasks.get(told.code),
        **dict.fromkeys((*_OF_STARTS, "before_deaths", "before_expected", "change_p")),
    }
    if told.dimension == "task_release" and (of_starts := told.by_start):
        figures = of_starts.deaths / of_starts.expected, of_starts.low, of_starts.high, of_starts.q
        row |= dict(zip(_OF_STARTS, figures, strict=True))
    if compared:
        deaths, hours = earlier["deaths"], earlier["ms"] / 3_600_000
        row["before_deaths"] = round(deaths, 3)
        row["before_expected"] = deaths * row["hours"] / hours if hours > 0 else None
        row["change_p"] = chance_of_change(row["deaths"], row["hours"], deaths, hours)
    return {**row, "says": says(row)}


def with_history(
    blamed: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]], at: str
) -> list[dict[str, Any]]:
    """Return the rows with ``first_seen``, since when each is accused, and ``told``: ``--new`` printed it.

    Args:
        before: rows of the last judgement; an older release told all of them.
        at: the newest entry of the journal that these rows know.
    """
    known = {(row["dimension"], row["key"]): row for row in before if row.get("first_seen")}
    new, rows = {"first_seen": at, "told": False}, []
    for row in blamed:
        was = known.get((row["dimension"], row["key"]), new) if is_accused(row) else None
        told = was and was.get("told") is not False
        rows.append({**row, "first_seen": was and was["first_seen"], "told": told})
    return rows


def is_accused(row: Mapping[str, Any]) -> bool:
    """Whether a row is guilty or suspicious."""
    return bool(row["standing"] != "unremarkable")


def anomalies(blamed: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of blame that kill more often than before the window, or did not run before.

    Only of what is guilty or suspicious, since the rate of a host rises with that of a bad task; with eight
    deaths at least, twice what they would have been at the rate before, and not by a chance of 5 % in all.
    """
    bad = [row for row in blamed if is_accused(row) and row["deaths"] >= 8]
    chance = FALSE_SHARE / max(1, len(bad))  # so many are compared
    return [
        row
        for row in bad
        if row["before_deaths"] is not None
        and (row["change_p"] is None or row["change_p"] < chance)
        and row["deaths"] >= 2 * (row["before_expected"] or 0)
    ]


def is_worse_by_start(row: Mapping[str, Any]) -> bool:
    """Whether each start of a task died more often under one release than under its others.

    A question of its own, beside the accusation: a release that only makes a task slower lets it die more
    often by start, though not by second.
    """
    return row["start_q"] is not None and row["start_q"] < FALSE_SHARE and row["deaths"] >= LEAST_DEATHS


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    standing = ("guilty", "suspicious", "unremarkable").index(row["standing"])
    return DIMENSIONS.index(row["dimension"]), standing, row["q"], -row["times"], row["key"]


def few(value: float, digits: int = 3) -> str:
    """Return a number in so many digits, and a large one whole: ``1,270``, not ``1.27e+03``."""
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.{digits}g}"


def says(row: Mapping[str, Any]) -> str:
    """Return in one sentence what is known of an element."""
    chance = f"{few(row['deaths'])} deaths where {few(row['expected'], 2)} are expected, p={row['p']:.2g}"
    if row["standing"] == "guilty":
        told = f"guilty: {row['proven']} of its messages died again when tried alone, none ever ended alive"
    elif row["standing"] == "suspicious":
        bounds = f"({few(row['low'])} to {few(row['high'])})"
        told = f"suspicious: {chance}, {few(row['times'])} times as many {bounds}"
    else:
        told = f"nothing against it: {chance}"
    if is_worse_by_start(row):
        told += (
            f"; each start since {row['since']} died {few(row['start_times'])} times"
            f" ({few(row['start_low'])} to {few(row['start_high'])}) as often as under its other releases"
        )
    if row["before_expected"] is not None:
        told += f"; at its rate before it would have been {few(row['before_expected'], 2)}"
        told += f", p={row['change_p']:.2g}"
    return told
