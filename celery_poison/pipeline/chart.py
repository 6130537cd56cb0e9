"""Deaths, or their cost, by day and cause: SVG of bars alone, its words beside it, to fit any width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from html import escape
from typing import Any, NamedTuple

from celery_poison.basics.text import clean

#: So many causes have a colour of their own; all others share the last.
_COLOURS = 5
#: So many releases are named below.
_NAMED = 12


class Measure(NamedTuple):
    """A number that bars show.

    Attributes:
        name: of its column.
        title: what it is of a day, and ``label``, of the whole picture.
        says: returns it for people.
    """

    name: str
    title: str
    label: str
    says: Callable[[int], str] = "{:,}".format


DEATHS = Measure("deaths", "deaths a day", "Deaths by day and cause")


def figure(
    causes: Sequence[Mapping[str, Any]],
    releases: Sequence[Mapping[str, Any]],
    totals: Mapping[str, Any],
    measure: Measure = DEATHS,
) -> str:
    """Return a figure; empty where there is nothing to show.

    Args:
        causes: rows of ``date``, ``cause`` and the measure.
        releases: rows of ``release`` and ``first``, when it ran first, as ``2026-01-20 14:05``.
        totals: with ``since`` and ``until``, the first and the last day.
    """
    name, _, _, says = measure
    counted = [row for row in causes if row["date"] and row[name]]
    if not counted:
        return ""
    sums = Counter[str]()
    for row in counted:
        sums[row["cause"]] += row[name]
    colours = {cause: min(n, _COLOURS) for n, (cause, _) in enumerate(sums.most_common())}
    ends = [row["date"] for row in counted] + [day for day in (totals["since"], totals["until"]) if day]
    first, last = date.fromisoformat(min(ends)), date.fromisoformat(max(ends))
    many = (last - first).days + 1
    bars, highest = _bars(counted, colours, first, measure)
    begun = [row for row in releases if row["first"] and row["first"][:10] > str(first)]
    lines = [_line(row, first) for row in begun]
    shown = [(f"c{colours[cause]}", f"{cause} {says(n)}") for cause, n in sums.most_common(_COLOURS)]
    if rest := sum(sums.values()) - sum(n for _, n in sums.most_common(_COLOURS)):
        shown.append((f"c{_COLOURS}", f"others {says(rest)}"))
    keys = "".join(f'<span><i class="{mark}"></i>{safe(words)}</span>' for mark, words in shown)
    named = ", ".join(f"{row['release']} {row['first'][:10]}" for row in begun[-_NAMED:])
    marks = f"<span>dashed: the first run of a release: {safe(named)}</span>" if named else ""
    return (
        f'<figure><div class="axis"><span>{measure.title}, {says(highest)} at most</span></div>'
        f'<svg viewBox="0 0 {many} 100" preserveAspectRatio="none" role="img"'
        f' aria-label="{measure.label}">{"".join(bars)}{"".join(lines)}</svg>'
        f'<div class="axis"><span>{first}</span><span>{last}</span></div>'
        f'<div class="key">{keys}{marks}</div></figure>'
    )


def _line(row: Mapping[str, Any], first: date) -> str:
    """Return the mark of a release."""
    hours, _, minutes = row["first"][11:].partition(":")
    day = (date.fromisoformat(row["first"][:10]) - first).days + (int(hours) + int(minutes) / 60) / 24
    title = f"<title>{safe(row['release'])} since {row['first']}</title>"
    return f'<line x1="{day:.3f}" x2="{day:.3f}" y1="0" y2="100">{title}</line>'


def _bars(
    counted: Sequence[Mapping[str, Any]], colours: Mapping[str, int], first: date, measure: Measure
) -> tuple[list[str], int]:
    """Return a bar for each day and cause, the commonest lowest; and the number of the worst day."""
    days, name = Counter[str](), measure.name
    for row in counted:
        days[row["date"]] += row[name]
    highest, filled, bars = max(days.values()), Counter[str](), list[str]()
    for row in sorted(counted, key=lambda row: (row["date"], colours[row["cause"]])):
        left = (date.fromisoformat(row["date"]) - first) / timedelta(1)
        height = 96 * row[name] / highest
        filled[row["date"]] += row[name]
        top = 100 - 96 * filled[row["date"]] / highest
        bars.append(
            f'<rect class="c{colours[row["cause"]]}" x="{left + 0.1:g}" y="{top:.2f}" width="0.8"'
            f' height="{height:.2f}"><title>{row["date"]}: {measure.says(row[name])}</title></rect>'
        )
    return bars, highest


def safe(words: object) -> str:
    """Return words as HTML shows them; control characters, and those that turn the direction, as escapes."""
    return escape(clean(words))
