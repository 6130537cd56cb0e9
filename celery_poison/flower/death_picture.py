"""Deaths by day and task, as a picture: an SVG that needs no script; its legend says the totals in words.

What it shows is counted in the step that records a death: nothing is scanned, however long the journal is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from celery_poison.flower import words
from celery_poison.flower.picture import LEFT, Frame, Picture

#: Days of the picture, and tasks that have a colour of their own.
DAYS, TASKS = 14, 5
_DAY = 86_400
#: Each with the number of days of which one has its date below.
_PICTURES = (
    (Frame("wide", 960, 150, top=10, bottom=24, columns=DAYS), 1),
    (Frame("narrow", 340, 150, top=10, bottom=24, columns=DAYS), 4),
)


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
    pictures = [_DeathsPicture(frame, bars, dated, today).draw(keys) for frame, dated in _PICTURES]
    return Deaths(pictures, keys, totals.total())


class _DeathsPicture(Picture):
    """Args: ``frame``, ``bars``; ``dated``: one date for so many days; ``today``: days since 1970."""

    def __init__(self, frame: Frame, bars: Counter[tuple[int, str]], dated: int, today: int) -> None:
        super().__init__(frame, bars)
        self._dated, self._today = dated, today

    def draw(self, keys: list[Key]) -> str:
        label = (
            f"{self.bars.total()} deaths by day and task, {self._date(0)} to {self._date(DAYS - 1)}, in UTC"
        )
        titles = {key.colour: words.say(key.task, 80) or "other tasks" for key in keys}
        return self.svg(label, self._dates(), self.stacks(titles, 0.15 * self.frame.column))

    def title_of(self, column: int) -> str:
        return f"{self._date(column)}: "

    def _date(self, column: int) -> str:
        moment = time.gmtime((self._today - DAYS + 1 + column) * _DAY)
        return f"{moment.tm_mday} {time.strftime('%b', moment)}"

    def _dates(self) -> Iterator[str]:
        for day in range(DAYS - 1, -1, -self._dated):
            # The last one ends with the picture where its column is narrower than a date.
            is_cut = day == DAYS - 1 and self._dated > 1
            x, anchor = (
                (self.frame.width, "end") if is_cut else (LEFT + (day + 0.5) * self.frame.column, "middle")
            )
            yield self.date(x, anchor, self._date(day))
