"""The cost of deaths: the run time that is thrown away, by day, cause and task (NEW-28)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery_poison.basics.text import span_in_two

#: No run counts for more than a week: one entry that says nonsense spoils no sum.
_LONGEST_MS = 7 * 24 * 3600 * 1000
#: Of all, of each day by cause, and of each cause by task. A run was done again if the journal has a later
#: one of its task id. What no process had taken up was no run. One that ended with its worker ended after
#: the last sign of life, up to which it is counted: ``least_ms``.
COST = f"""
select date, cause, task, count(*) as runs, count(*) - count(ms) as unknown,
  cast(coalesce(sum(ms), 0) as bigint) as ms,
  cast(coalesce(sum(case when again then ms end), 0) as bigint) as again_ms,
  cast(coalesce(sum(case when incident is not null then ms end), 0) as bigint) as least_ms,
  grouping(date) as of_task, grouping(task) as of_day
from (select date, coalesce(cause, 'unknown') as cause, coalesce(task, '') as task, again,
    incident, case when runtime_ms >= 0 then least(runtime_ms, {_LONGEST_MS}) end as ms
  from (select k.*, lead(token) over (partition by coalesce(id, token) order by ended_at, seq) is not null
    as again from {{kin}} k) r
  where {{recent}} and {{window}} and r.end in ('crashed', 'interrupted')
    and coalesce(cause, '') not in ('receive', 'not_reached') and (runtime_ms is not null or pid > 0)) c
group by grouping sets ((), (date, cause), (cause, task)) order by date, ms desc, runs desc, cause, task
"""
_SUMS = ("runs", "unknown", "ms", "again_ms", "least_ms")


def sums(selected: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows of :data:`COST` apart: ``totals``, ``days`` and ``tasks``, the greatest first."""
    rows = [*selected]
    whole = [row for row in rows if row["of_task"] and row["of_day"]]
    return {
        "totals": {name: sum(row[name] for row in whole) for name in _SUMS},
        "days": [_row(row, "date", "cause") for row in rows if not row["of_task"]],
        "tasks": [_row(row, "task", "cause") for row in rows if not row["of_day"]],
    }


def _row(row: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {name: row[name] for name in (*keys, *_SUMS)}


def says(totals: Mapping[str, int]) -> list[str]:
    """Return the totals in sentences."""
    runs, unknown = totals["runs"], totals["unknown"]
    lost, again = spans_of(totals)
    cut_off = f"{runs:,} {'run was' if runs == 1 else 'runs were'} cut off"
    words = [f"{cut_off}, {lost} of work thrown away"]
    if totals["again_ms"]:
        words.append(f"{again} of it was done again: the journal has a later run of the same task id")
    if unknown:
        words.append(f"of {unknown:,} of them the run time is not on record")
    return words


def spans_of(row: Mapping[str, int]) -> tuple[str, str]:
    """Return the time that was thrown away, and what of it was done again, for people."""
    least = row["least_ms"]
    bound = "" if not least else "at least " if least >= row["ms"] else "about "
    lost, again = (bound + span_of(row[name]) for name in ("ms", "again_ms"))
    return lost, again


def span_of(ms: int) -> str:
    """Return milliseconds for people."""
    return span_in_two(ms / 1000)
