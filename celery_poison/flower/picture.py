"""Stacked bars as an SVG that needs no script; each bar says in words what it stands for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

#: Units left of the bars, for the numbers of the grid.
LEFT = 40


class Frame(NamedTuple):
    """The size of a picture, in units.

    Attributes:
        name: class of the style sheet: it shows the picture that fits the screen.
        top, bottom: above and below the bars.
        columns: bars side by side.
    """

    name: str
    width: int
    height: int
    top: int
    bottom: int
    columns: int

    @property
    def column(self) -> float:
        """The width of a column."""
        return (self.width - LEFT) / self.columns


def svg(name: str, width: int, height: int, label: str, *parts: Iterator[str]) -> str:
    """Return the SVG of these parts; ``label`` is read aloud in its place."""
    inner = "".join(piece for part in parts for piece in part)
    return (
        f'<svg class="poison-picture {name}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label={quoteattr(label)} xmlns="http://www.w3.org/2000/svg">{inner}</svg>'
    )


class Picture:
    """One picture.

    Args:
        bars: (column, class of the style sheet) -> number.
    """

    def __init__(self, frame: Frame, bars: Counter[tuple[int, str]]) -> None:
        self.frame, self.bars = frame, bars
        heights = Counter[int]()
        for (column, _), number in bars.items():
            heights[column] += number
        self._highest = max([*heights.values(), 4])

    def svg(self, label: str, *parts: Iterator[str]) -> str:
        """Return the SVG: the grid, and these parts; ``label`` is read aloud in place of the picture."""
        return svg(*self.frame[:3], label, self._grid(), *parts)

    def date(self, x: float, anchor: str, text: str) -> str:
        """Return a date or time below the bars; ``anchor``: start, middle or end of it is at ``x``."""
        place = f'x="{x:.0f}" y="{self.frame.height - 6}" text-anchor="{anchor}"'
        return f'<text class="axis" {place}>{text}</text>'

    def stacks(self, titles: Mapping[str, str], inset: float) -> Iterator[str]:
        """Yield the bars, those of one column above each other.

        Args:
            titles: class of the style sheet -> what its number counts, in the order of the stack. A bar's
                title is the column's (see :meth:`title_of`), its number and that.
            inset: units that a bar is narrower than its column, on either side.
        """
        heights, width = Counter[int](), self.frame.column
        for kind, name in titles.items():
            for column in range(self.frame.columns):
                if count := self.bars[column, kind]:
                    y, below = self._y(heights[column] + count), self._y(heights[column])
                    heights[column] += count
                    x = LEFT + column * width + inset
                    size = f'width="{width - 2 * inset:.1f}" height="{below - y:.1f}"'
                    title = escape(f"{self.title_of(column)}{count:,} × {name}")
                    place = f'class="bar {kind}" x="{x:.1f}" y="{y:.1f}" {size}'
                    yield f"<rect {place}><title>{title}</title></rect>"

    def title_of(self, column: int) -> str:
        """Return how the titles of a column's bars begin."""
        return ""

    def _y(self, count: float) -> float:
        _, _, height, top, bottom, _ = self.frame
        return top + (height - top - bottom) * (1 - count / self._highest)

    def _grid(self) -> Iterator[str]:
        for count in range(0, self._highest + 1, math.ceil(self._highest / 4)):
            y = self._y(count)
            yield f'<line class="grid" x1="{LEFT}" x2="{self.frame.width}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="axis" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>'
