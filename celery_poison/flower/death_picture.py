"""Deaths by day and task, as a picture: an SVG that needs no script; its legend says the totals in words.

What it shows is counted in the step that records a death: nothing is scanned, however long the journal is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from celery_poison.basics.text import count_of
from celery_poison.flower import words
from celery_poison.flower.picture import LEFT, Frame, Picture

#: Days that are looked at, and that the picture has at least; tasks that have a colour of their own.
DAYS, FEWEST, TASKS = 14, 5, 5
_DAY = 86_400
_PICTURES = (Frame("wide", 960, 150, top=10, bottom=24, columns=0), Frame("narrow", 340, 150, 10, 24, 0))
#: A narrow picture writes a date below each day up to so many days, and below one in four beyond that.
_DATED = 5
#: Units of a bar.
_WIDEST = 60


class Key(NamedTuple):
    """One line of the legend: ``task`` is empty for all tasks without a colour."""

    colour: str
    task: str
    total: int


class Deaths(NamedTuple):
    """The pictures of so many days, and their legend, the most frequent task first."""

    pictures: list[str]
    keys: list[Key]
    total: int
    days: int


def draw(deaths: Mapping[tuple[int, str], int], now: float) -> Deaths | None:
    """Return the deaths of the last :data:`DAYS` days, or since the first of them; None where there was none.

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
    days = max(FEWEST, today - min(day for day, _ in shown) + 1)
    bars = Counter[tuple[int, str]]()
    for (day, task), number in shown.items():
        bars[day - today + days - 1, colours.get(task, "others")] += number
    frames = (frame._replace(columns=days) for frame in _PICTURES)
    return Deaths(
        [_DeathsPicture(frame, bars, today).draw(keys) for frame in frames], keys, totals.total(), days
    )


class _DeathsPicture(Picture):
    """Args: ``frame``, ``bars``; ``today``: days since 1970."""

    def __init__(self, frame: Frame, bars: Counter[tuple[int, str]], today: int) -> None:
        super().__init__(frame, bars)
        self._today = today
        #: One date for so many days.
        self._dated = 4 if frame.name == "narrow" and frame.columns > _DATED else 1

    def draw(self, keys: list[Key]) -> str:
        label = (
            f"{count_of(self.bars.total(), 'death')} by day and task, {self._date(0)} to"
            f" {self._date(self.frame.columns - 1)}, in UTC"
        )
        titles = {key.colour: words.say(key.task, 80) or "other tasks" for key in keys}
        column = self.frame.column
        inset = max(0.15 * column, (column - _WIDEST) / 2)
        return self.svg(label, self._dates(), self.stacks(titles, inset))

    def title_of(self, column: int) -> str:
        return f"{self._date(column)}: "

    def _date(self, column: int) -> str:
        moment = time.gmtime((self._today - self.frame.columns + 1 + column) * _DAY)
        return f"{moment.tm_mday} {time.strftime('%b', moment)}"

    def _dates(self) -> Iterator[str]:
        last = self.frame.columns - 1
        for day in range(last, -1, -self._dated):
            # The last one ends with the picture where its column is narrower than a date.
            is_cut = day == last and self._dated > 1
            x, anchor = (
                (self.frame.width, "end") if is_cut else (LEFT + (day + 0.5) * self.frame.column, "middle")
            )
            yield self.date(x, anchor, self._date(day))
