"""The part of a history that depends on the policy; SQL that Spark and DuckDB read alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from celery_poison.pipeline.backtest.in_force import DEFAULTS, InForce, Timeline
from celery_poison.pipeline.backtest.replay import Oversized, Step
from celery_poison.pipeline.blame import ALWAYS, IS_ALIVE, Ask, filled
from celery_poison.pipeline.tables.kin import LARGE
from celery_poison.pipeline.window import Window

#: Of a history with more steps than this the newest days are replayed: each policy goes through all of them.
MOST = 100_000

#: The attempts of every task id that ever was in trouble, and those like a guilty one.
_CONCERNED = f"""
with told as (select * from {{kin}} r where id is not null and {{window}} and {{recent}}
), troubled as (
  select distinct id as troubled_id from told r where not ({IS_ALIVE} and r.end <> 'rolled_back')
), alike as (
  select distinct fingerprint as alike from told r
  where r.end = 'crashed' and proof = 'proven' and fingerprint is not null
), concerned as (
  select told.*, case when {IS_ALIVE.replace("r.", "told.")} and told.end = 'finished' then 'alive'
    else told.end end as ending
  from told left join troubled on told.id = troubled_id left join alike on told.fingerprint = alike
  where troubled_id is not null or alike is not null
)"""
_DAYS = (
    f"{_CONCERNED} select date, cast(count(*) as bigint) as n from concerned group by date order by date desc"
)
_STEPS = f"""{_CONCERNED}
select id, coalesce(started_at, ended_at) as started, ended_at as ended, ending,
  coalesce(blame, '') as blame, coalesce(proof, '') as proof, coalesce(death, '') as death,
  incident is not null as in_incident, coalesce(cause, '') as cause,
  coalesce(fingerprint, '') as fingerprint, coalesce(payload_bytes, 0) as payload_bytes,
  coalesce(runtime_ms, 0) as runtime_ms, coalesce(task, '') as task
from concerned order by ended_at, seq
"""
_OVERSIZED = f"""{_CONCERNED}, large as (
  select id as large_id, max(payload_bytes) as size, max(date) as day from told r
  where {IS_ALIVE} and payload_bytes > {LARGE} group by id
)
select day, size from large left join (select distinct id from concerned) c on large_id = c.id
where c.id is null
"""
_CHANGES = """
select n.at as changed, task, note from {noted} n
where event = 'policy_changed' and task is not null and note is not null order by n.at, seq
"""


@dataclass(frozen=True)
class Past:
    """What a back-test replays.

    Attributes:
        days: counted from 1970 in UTC.
        oversized: see :func:`celery_poison.pipeline.backtest.replay.replay`.
        says: what of the history is not in it, in a sentence; empty for nothing.
    """

    steps: list[Step]
    days: range
    timeline: Timeline
    oversized: Oversized
    says: str = ""


def past(
    ask: Ask, limits: Iterable[int], window: Window = ALWAYS, settings: InForce = DEFAULTS, most: int = MOST
) -> Past:
    """Return the steps of all messages that a policy can treat differently, by the time of their end.

    Args:
        ask: runs a query over ``{kin}`` and ``{noted}``.
        limits: of size, none below ``tables.kin.LARGE``.
        settings: what the code and the settings say, which no journal tells.
    """
    names = {"recent": window.recent, "window": window.within}
    since, left = None, most
    told = ask(filled(_DAYS, names)).to_pylist()
    for row in told:
        left -= row["n"]
        if left < 0 and since is not None:
            break
        since = row["date"]
    says = ""
    if since is not None and since != told[-1]["date"]:
        names["recent"] = Window(since=since).recent
        says = f"only the days since {since}: more than {most:,} runs are too many to replay"
    steps = _steps(ask(filled(_STEPS, names)))
    days = range(steps[0].ended // _DAY_MS, steps[-1].ended // _DAY_MS + 1) if steps else range(0)
    changes = ask(_CHANGES)
    timeline = Timeline(
        zip(
            _millis(changes["changed"]), changes["task"].to_pylist(), changes["note"].to_pylist(), strict=True
        ),
        settings,
    )
    return Past(steps, days, timeline, _by_limit(ask(filled(_OVERSIZED, names)), limits), says)


_DAY_MS = 86_400_000


def _steps(table: pa.Table) -> list[Step]:
    columns = {name: _millis(table[name]) for name in ("started", "ended")} | {
        "end": table["ending"].to_pylist()
    }
    columns |= {name: table[name].to_pylist() for name in Step._fields if name not in columns}
    return [Step(*row) for row in zip(*(columns[name] for name in Step._fields), strict=True)]


def _by_limit(table: pa.Table, limits: Iterable[int]) -> Oversized:
    days = pc.cast(table["day"], pa.date32()).cast(pa.int32()).to_pylist()
    sizes = table["size"].to_pylist()
    found: dict[int, dict[int, int]] = {}
    for limit in limits:
        by_day = found.setdefault(limit, {})
        for day, size in zip(days, sizes, strict=True):
            if size > limit:
                by_day[day] = by_day.get(day, 0) + 1
    return found


def _millis(column: Any) -> list[int]:
    told: list[int] = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    return told
