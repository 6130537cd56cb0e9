"""Deaths by day and cause as a picture: SVG of bars alone, its words beside it, so that it fits any width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from html import escape
from typing import Any

from celery_poison.basics.text import clean

#: So many causes have a colour of their own; all others share the last.
_COLOURS = 5
#: So many releases are named below.
_NAMED = 12


def figure(
    causes: Sequence[Mapping[str, Any]], releases: Sequence[Mapping[str, Any]], totals: Mapping[str, Any]
) -> str:
    """Return a figure; empty where nothing died.

    Args:
        causes: rows of ``date``, ``cause`` and ``deaths``.
        releases: rows of ``release`` and ``first``, when it ran first, as ``2026-01-20 14:05``.
        totals: with ``since`` and ``until``, the first and the last day.
    """
    counted = [row for row in causes if row["date"]]
    if not counted:
        return ""
    sums = Counter[str]()
    for row in counted:
        sums[row["cause"]] += row["deaths"]
    colours = {cause: min(n, _COLOURS) for n, (cause, _) in enumerate(sums.most_common())}
    ends = [row["date"] for row in counted] + [day for day in (totals["since"], totals["until"]) if day]
    first, last = date.fromisoformat(min(ends)), date.fromisoformat(max(ends))
    many = (last - first).days + 1
    bars, highest = _bars(counted, colours, first)
    begun = [row for row in releases if row["first"] and row["first"][:10] > str(first)]
    lines = [_line(row, first) for row in begun]
    shown = [(f"c{colours[cause]}", f"{cause} {n:,}") for cause, n in sums.most_common(_COLOURS)]
    if rest := sum(sums.values()) - sum(n for _, n in sums.most_common(_COLOURS)):
        shown.append((f"c{_COLOURS}", f"others {rest:,}"))
    keys = "".join(f'<span><i class="{mark}"></i>{safe(words)}</span>' for mark, words in shown)
    named = ", ".join(f"{row['release']} {row['first'][:10]}" for row in begun[-_NAMED:])
    marks = f"<span>dashed: the first run of a release: {safe(named)}</span>" if named else ""
    return (
        f'<figure><div class="axis"><span>deaths a day, {highest:,} at most</span></div>'
        f'<svg viewBox="0 0 {many} 100" preserveAspectRatio="none" role="img" aria-label="Deaths by day and'
        f' cause">{"".join(bars)}{"".join(lines)}</svg><div class="axis"><span>{first}</span>'
        f'<span>{last}</span></div><div class="key">{keys}{marks}</div></figure>'
    )


def _line(row: Mapping[str, Any], first: date) -> str:
    """Return the mark of a release."""
    hours, _, minutes = row["first"][11:].partition(":")
    day = (date.fromisoformat(row["first"][:10]) - first).days + (int(hours) + int(minutes) / 60) / 24
    title = f"<title>{safe(row['release'])} since {row['first']}</title>"
    return f'<line x1="{day:.3f}" x2="{day:.3f}" y1="0" y2="100">{title}</line>'


def _bars(
    counted: Sequence[Mapping[str, Any]], colours: Mapping[str, int], first: date
) -> tuple[list[str], int]:
    """Return a bar for each day and cause, the commonest lowest; and how many died on the worst day."""
    days: dict[str, int] = Counter(day for row in counted for day in [row["date"]] * row["deaths"])
    highest, filled, bars = max(days.values()), Counter[str](), list[str]()
    for row in sorted(counted, key=lambda row: (row["date"], colours[row["cause"]])):
        left = (date.fromisoformat(row["date"]) - first) / timedelta(1)
        height = 96 * row["deaths"] / highest
        filled[row["date"]] += row["deaths"]
        top = 100 - 96 * filled[row["date"]] / highest
        bars.append(
            f'<rect class="c{colours[row["cause"]]}" x="{left + 0.1:g}" y="{top:.2f}" width="0.8"'
            f' height="{height:.2f}"><title>{row["date"]}: {row["deaths"]:,}</title></rect>'
        )
    return bars, highest


def safe(words: object) -> str:
    """Return words as HTML shows them; control characters, and those that turn the direction, as escapes."""
    return escape(clean(words))
