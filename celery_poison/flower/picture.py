"""Draws deaths over time as an SVG that needs no script; the table beside it says the same in words."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 200, 46, 26, 12
_BUCKETS = 60
#: Kind -> its name in the legend; one bar stacks them in this order.
KINDS = {
    "worker": "worker died",
    "convicted": "worker died, message convicted",
    "open": "recovery goes on",
    "process": "pool process died",
}
#: Marks that are drawn one by one, with their recovery; beyond that the bars must do.
_SINGLE = 150


class Mark(NamedTuple):
    """One death: when (seconds), for how many seconds it was recovered from, and what it was."""

    at: float
    took: float | None
    kind: str
    label: str


def draw(marks: Sequence[Mark], since: float, now: float) -> str:
    """Return the picture of what happened between two moments."""
    bars = Counter((_bucket(mark.at, since, now), mark.kind) for mark in marks)
    totals = Counter[int]()
    for (bucket, _), count in bars.items():
        totals[bucket] += count
    top = max([*totals.values(), 4])
    parts = [*_frame(since, now, top), *_bars(bars, top), *_recoveries(marks, since, now)]
    label = f"{len(marks)} deaths between {_clock(since, now)} and {_clock(now, now)}"
    return (
        f'<svg class="poison-picture" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _bucket(at: float, since: float, now: float) -> int:
    return min(_BUCKETS - 1, max(0, int((at - since) / (now - since) * _BUCKETS)))


def _x(at: float, since: float, now: float) -> float:
    return LEFT + (WIDTH - LEFT) * (at - since) / (now - since)


def _y(count: float, top: int) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - count / top)


def _frame(since: float, now: float, top: int) -> Iterator[str]:
    step = max(1, math.ceil(top / 4))
    for count in range(0, top + 1, step):
        y = _y(count, top)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="axis" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count}</text>'
    for part in range(7):
        at = since + (now - since) * part / 6
        anchor = "start" if part == 0 else "end" if part == 6 else "middle"
        x = _x(at, since, now)
        place = f'x="{x:.0f}" y="{HEIGHT - 6}" text-anchor="{anchor}"'
        yield f'<text class="axis" {place}>{_clock(at, now)}</text>'


def _bars(bars: Counter[tuple[int, str]], top: int) -> Iterator[str]:
    width = (WIDTH - LEFT) / _BUCKETS
    heights = Counter[int]()
    for kind, name in KINDS.items():
        for bucket in range(_BUCKETS):
            if count := bars[bucket, kind]:
                y = _y(heights[bucket] + count, top)
                height = _y(heights[bucket], top) - y
                heights[bucket] += count
                yield (
                    f'<rect class="bar {kind}" x="{LEFT + bucket * width + 1:.1f}" y="{y:.1f}"'
                    f' width="{width - 2:.1f}" height="{height:.1f}"><title>{count} × {name}</title></rect>'
                )


def _recoveries(marks: Sequence[Mark], since: float, now: float) -> Iterator[str]:
    """Draw below the bars from each worker's death to the end of its recovery."""
    y = HEIGHT - BOTTOM + 4
    for mark in [mark for mark in marks if mark.kind != "process"][:_SINGLE]:
        left = _x(mark.at, since, now)
        right = _x(min(now, mark.at + (mark.took or 0 if mark.kind != "open" else now - mark.at)), since, now)
        yield (
            f'<rect class="recovery {mark.kind}" x="{left:.1f}" y="{y}" height="5" rx="2"'
            f' width="{max(4.0, right - left):.1f}"><title>{escape(mark.label)}</title></rect>'
        )


def _clock(at: float, now: float) -> str:
    day = "" if now - at < 20 * 3600 else "%d %b "
    return time.strftime(f"{day}%H:%M", time.localtime(at))
