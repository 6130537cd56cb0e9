"""The cost of deaths: the run time that is thrown away, by day, cause and task (NEW-28)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery_poison.basics.text import span_in_two

#: No run counts for more than a week: one entry that says nonsense spoils no sum.
_LONGEST_MS = 7 * 24 * 3600 * 1000
#: Of all, of each day by cause, and of each cause by task. A run was done again if the journal has a later
#: one of its task id. What was interrupted before a process took it up was no run.
COST = f"""
select date, cause, task, count(*) as runs, count(*) - count(ms) as unknown,
  cast(coalesce(sum(ms), 0) as bigint) as ms,
  cast(coalesce(sum(case when again then ms end), 0) as bigint) as again_ms,
  grouping(date) as of_task, grouping(task) as of_day
from (select date, coalesce(cause, 'unknown') as cause, coalesce(task, '') as task, again,
    case when runtime_ms is not null then least(greatest(runtime_ms, 0), {_LONGEST_MS}) end as ms
  from (select k.*, lead(token) over (partition by coalesce(id, token) order by ended_at, seq) is not null
    as again from {{kin}} k) r
  where {{recent}} and {{window}} and (r.end = 'crashed' and coalesce(cause, '') <> 'receive'
    or r.end = 'interrupted' and coalesce(cause, '') <> 'not_reached'
      and (runtime_ms is not null or pid > 0))) c
group by grouping sets ((), (date, cause), (cause, task)) order by date, ms desc, runs desc, cause, task
"""
_SUMS = ("runs", "unknown", "ms", "again_ms")


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
    runs, unknown, lost, again = (totals[name] for name in _SUMS)
    cut_off = f"{runs:,} {'run was' if runs == 1 else 'runs were'} cut off"
    words = [f"{cut_off}, {span_of(lost)} of work thrown away"]
    if again:
        words.append(
            f"{span_of(again)} of it was done again: the journal has a later run of the same task id"
        )
    if unknown:
        words.append(f"of {unknown:,} of them the run time is not on record")
    return words


def span_of(ms: int) -> str:
    """Return milliseconds for people."""
    return span_in_two(ms / 1000)
