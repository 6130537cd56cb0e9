"""Deaths by day and task, as a picture: an SVG that needs no script; its legend says the totals in words.

What it shows is counted in the step that records a death: nothing is scanned, however long the journal is.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from celery_poison.flower import words

#: Days of the picture, and tasks that have a colour of their own.
DAYS, TASKS = 14, 5
_DAY = 86_400
_HEIGHT, _LEFT, _BOTTOM, _TOP = 150, 40, 24, 10
#: Name -> width in units, and of how many days one has its date below. The style sheet shows what fits.
_SIZES = {"wide": (960, 1), "narrow": (340, 4)}


class Key(NamedTuple):
    """One line of the legend: ``task`` is empty for all tasks without a colour."""

    colour: str
    task: str
    total: int


class Deaths(NamedTuple):
    """The pictures, and their legend, the most frequent task first."""

    pictures: list[str]
    keys: list[Key]
    total: int


def draw(deaths: Mapping[tuple[int, str], int], now: float) -> Deaths | None:
    """Return the deaths of the last :data:`DAYS` days; None where there was none.

    Args:
        deaths: (days since 1970 in UTC, task) -> number.
        now: in seconds, by Redis' clock.
    """
    today = int(now) // _DAY
    shown = {key: number for key, number in deaths.items() if today - DAYS < key[0] <= today}
    totals = Counter[str]()
    for (_, task), number in shown.items():
        totals[task] += number
    if not totals:
        return None
    named = sorted((task for task in totals if task), key=lambda task: (-totals[task], task))[:TASKS]
    keys = [Key(f"task{number}", task, totals[task]) for number, task in enumerate(named)]
    rest = totals.total() - sum(key.total for key in keys)
    keys += [Key("others", "", rest)] if rest else []
    colours = {key.task: key.colour for key in keys}
    bars = Counter[tuple[int, str]]()
    for (day, task), number in shown.items():
        bars[day - today + DAYS - 1, colours.get(task, "others")] += number
    return Deaths([_Picture(name, bars, keys, today).svg() for name in _SIZES], keys, totals.total())


class _Picture:
    def __init__(self, name: str, bars: Counter[tuple[int, str]], keys: list[Key], today: int) -> None:
        self._name, self._bars, self._keys, self._today = name, bars, keys, today
        self._width, self._dated = _SIZES[name]
        heights = Counter[int]()
        for (column, _), number in bars.items():
            heights[column] += number
        self._top = max([*heights.values(), 4])

    def svg(self) -> str:
        dates = f"{self._date(0)} to {self._date(DAYS - 1)}"
        label = f"{self._bars.total()} deaths by day and task, {dates}, in UTC"
        return (
            f'<svg class="poison-picture {self._name}" viewBox="0 0 {self._width} {_HEIGHT}" role="img"'
            f' aria-label={quoteattr(label)} xmlns="http://www.w3.org/2000/svg">'
            f"{''.join((*self._frame(), *self._stacks()))}</svg>"
        )

    def _date(self, column: int) -> str:
        moment = time.gmtime((self._today - DAYS + 1 + column) * _DAY)
        return f"{moment.tm_mday} {time.strftime('%b', moment)}"

    def _y(self, count: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - count / self._top)

    def _frame(self) -> Iterator[str]:
        for count in range(0, self._top + 1, math.ceil(self._top / 4)):
            y = self._y(count)
            yield f'<line class="grid" x1="{_LEFT}" x2="{self._width}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>'
        column = (self._width - _LEFT) / DAYS
        for day in range(DAYS - 1, -1, -self._dated):
            # The last one ends with the picture where its column is narrower than a date.
            is_cut = day == DAYS - 1 and self._dated > 1
            x, anchor = (self._width, "end") if is_cut else (_LEFT + (day + 0.5) * column, "middle")
            place = f'x="{x:.0f}" y="{_HEIGHT - 6}" text-anchor="{anchor}"'
            yield f'<text class="axis" {place}>{self._date(day)}</text>'

    def _stacks(self) -> Iterator[str]:
        column, heights = (self._width - _LEFT) / DAYS, Counter[int]()
        for key in self._keys:
            name = words.say(key.task, 80) or "other tasks"
            for day in range(DAYS):
                if count := self._bars[day, key.colour]:
                    y, below = self._y(heights[day] + count), self._y(heights[day])
                    heights[day] += count
                    said = escape(f"{self._date(day)}: {count:,} × {name}")
                    place = f'x="{_LEFT + (day + 0.15) * column:.1f}" y="{y:.1f}" width="{0.7 * column:.1f}"'
                    bar = f'class="bar {key.colour}" {place} height="{below - y:.1f}"'
                    yield f"<rect {bar}><title>{said}</title></rect>"
