"""What ``pipeline forecast`` says of what :mod:`celery_poison.pipeline.forecast` found, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery_poison.pipeline.blame import few

Row = Mapping[str, Any]


def of_task(row: Row, limit: float, unit: str) -> str:
    """Return a row of the forecast in words: its runs, its share above the limit, and the check of that."""
    told = (
        f"{row['runs']:,} runs, half up to {few(row['p50'])} {unit}, 95 % up to {few(row['p95'])}; above"
        f" {limit:g}: {row['share']:.2%} ({row['low']:.2%} to {row['high']:.2%}), {few(row['a_day'])} a day"
    )
    if row["held_days"]:
        told += (
            f"; on the {row['held_days']} days held out {row['expected_low']:,} to {row['expected_high']:,}"
            f" were expected, {row['came']:,} came"
        )
    for rank in ("p50", "p95"):
        if (times := row[f"{rank}_times"]) is not None:
            bounds = f"{few(row[f'{rank}_low'])} to {few(row[f'{rank}_high'])}"
            told += f"; {rank} under {row['release']} is {few(times)} times ({bounds}) that of other releases"
    return told


def of_limit(rows: Sequence[Row], measure: str, limit: float, unit: str) -> Iterator[str]:
    """Yield whether the intervals held, and what the limit would have cost and spared."""
    held = [row for row in rows if row["held_days"] and row["expected_high"]]
    good = sum(row["expected_low"] <= row["came"] <= row["expected_high"] for row in held)
    if held:
        yield f"{good} of {len(held)} intervals held on the days held out"
    if measure in ("peak", "runtime"):
        alive, hours = _sum(rows, "alive_above"), _sum(rows, "alive_above_hours")
        yield f"a limit of {limit:g} {unit} would have ended {alive:,} runs that ended alive ({few(hours)} h)"
    if measure == "runtime":
        died = _sum(rows, "died_above")
        spared = max(0.0, _sum(rows, "died_above_hours") - died * limit / 3600)
        yield f"of {died:,} longer runs that died it would have spared {few(spared)} h"
    if measure == "peak":
        yield f"{_sum(rows, 'spared'):,} runs ran out of memory below it: their own limit was lower"
    if measure == "peak" and (above := [row for row in rows if row["above"]]):
        tasks = list(dict.fromkeys(row["task"] for row in above))
        names = ", ".join(tasks[:5]) + (f" and {len(tasks) - 5} more" if len(tasks) > 5 else "")
        yield (
            f'poison_exception_destination={{"oom": "bigmem"}}: {few(_sum(above, "a_day"))} messages a day,'
            f" of {names}; the largest needed {max(row['most'] for row in above):,.0f} MiB"
        )


def _sum(rows: Sequence[Row], name: str) -> Any:
    return sum(row[name] for row in rows)
