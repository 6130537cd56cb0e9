"""The sums of what runs had taken that were cut off, by day, cause and task; and what they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from typing import Any, NamedTuple, Self

from celery_poison.basics.numbers import is_whole, whole
from celery_poison.basics.text import count_of, decoded, span_in_two
from celery_poison.causes import EVICTION, FROZEN, OF_WORKERS, short
from celery_poison.ledger import Ledger
from celery_poison.ledger.connection import clear_errors

_EPOCH = date(1970, 1, 1)
#: As the scripts name the sums since the ledger began, and those of deaths of workers.
_EVER, _DEATHS = "all", "in"
#: What the hash has of each sum.
_MEASURES = ("runs", "ms", "unknown", "kept")
#: Causes of runs that are counted up to the last sign of life of their worker, which died with them.
_WITH_WORKER = frozenset({*OF_WORKERS, FROZEN, EVICTION})
#: Causes that a sentence names.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Loss:
    """A sum over runs that were cut off.

    Attributes:
        runs: how many there were.
        ms: run time that is thrown away, as far as it is on record, in milliseconds.
        unknown: runs whose run time is not on record.
        kept: what of ``ms`` is not done again: the message went to quarantine, or had been acknowledged.
        least: what of ``ms`` may have been more: the worker died, too, and was last heard of before.
    """

    runs: int = 0
    ms: int = 0
    unknown: int = 0
    kept: int = 0
    least: int = 0

    def __add__(self, other: Loss) -> Loss:
        ms, kept, least = self.ms + other.ms, self.kept + other.kept, self.least + other.least
        return Loss(self.runs + other.runs, ms, self.unknown + other.unknown, kept, least)

    @property
    def again(self) -> int:
        """Milliseconds of it that are done again."""
        return max(0, self.ms - self.kept)

    @property
    def sentence(self) -> str:
        """The loss in words."""
        return self.in_words()

    def in_words(self, causes: str = "", worst: str = "") -> str:
        """Return the loss in words.

        Args:
            causes: of the ends, with their numbers.
            worst: how much of :attr:`again` is due to which task.
        """
        words = f"{count_of(self.runs, 'run')} cut off" + (f" ({causes})" if causes else "")
        if self.again:
            words += f", {self.spans[0]} of work done twice" + (f", {worst}" if worst else "")
        if self.kept:
            words += f"; {self.spans[1]} thrown away with messages that went to quarantine"
            words += " or had been acknowledged"
        if self.unknown:
            of = "its" if self.runs == 1 else f"of {self.unknown} of them the"
            words += f"; {of} run time is not on record"
        return words

    @property
    def spans(self) -> tuple[str, str]:
        """Time that is done again, and that is not, for people; empty for nothing."""
        bound = "" if not self.least else "at least " if self.least >= self.ms else "about "
        again, kept = (bound + _span(ms) if ms else "" for ms in (self.again, self.kept))
        return again, kept


NOTHING = Loss()


class Place(NamedTuple):
    """Where work was lost: the day, in days since 1970 (UTC); the task is empty beyond fifty a day."""

    day: int
    cause: str
    task: str


@dataclass(frozen=True, slots=True)
class Losses:
    """All sums of a ledger.

    Attributes:
        today: in days since 1970 (UTC), by Redis' clock.
        days: of the last fourteen days.
        ever: by cause and task, since the ledger began; the empty task: those beyond two hundred.
        deaths: by the death of a worker, of the last fourteen days, at most two hundred a day.
    """

    today: int
    days: Mapping[Place, Loss]
    ever: Mapping[tuple[str, str], Loss]
    deaths: Mapping[str, Loss]

    @classmethod
    def of(cls, fields: Mapping[str, int], today: int) -> Self:
        """Read the fields of the hash; what is none of them is passed over."""
        days, ever, deaths = dict[Place, Loss](), dict[tuple[str, str], Loss](), dict[str, Loss]()
        for name, number in fields.items():
            measure, _, rest = name.partition(" ")
            if measure not in _MEASURES or number <= 0:
                continue
            group, _, word = rest.partition(" ")
            loss, (first, _, last) = Loss(**{measure: number}), word.partition(" ")
            if group == _EVER:
                ever[first, last] = ever.get((first, last), NOTHING) + loss
            elif group == _DEATHS and is_whole(first):  # a recovery may go on after midnight
                deaths[last] = deaths.get(last, NOTHING) + loss
            elif is_whole(group) and today - 14 < int(group) <= today:
                place = Place(int(group), first, last)
                days[place] = days.get(place, NOTHING) + loss
        of_workers = {place: _least(loss) for place, loss in days.items() if place.cause in _WITH_WORKER}
        deaths = {name: _least(loss) for name, loss in deaths.items()}
        return cls(today, days | of_workers, ever, deaths)

    def on(self, day: int) -> str:
        """Return the losses of a day in words; empty for none."""
        mine = {place: loss for place, loss in self.days.items() if place.day == day}
        if not (total := sum(mine.values(), NOTHING)).runs:
            return ""
        by_cause, by_task = Counter[str](), Counter[str]()
        for place, loss in mine.items():
            by_cause[short(place.cause)] += loss.runs
            by_task[place.task] += loss.again
        named = by_cause.most_common(_NAMED)
        causes = [f"{number} {cause}" for cause, number in named]
        if others := total.runs - sum(number for _, number in named):
            causes.append(f"{others} of other causes")
        ((task, ms),) = by_task.most_common(1)
        worst = f"{_span(ms)} of it by {task}" if task and len(by_task) > 1 else ""
        return total.in_words(", ".join(causes), worst)

    @property
    def line(self) -> str:
        """The losses of today and yesterday in words; empty for nothing."""
        days = (("today", self.on(self.today)), ("yesterday", self.on(self.today - 1)))
        return "; ".join(f"{name} (UTC): {words}" for name, words in days if words)

    @property
    def worst(self) -> list[tuple[str, str, Loss]]:
        """Cause, task and sum of all fourteen days, what lost most first."""
        found: dict[tuple[str, str], Loss] = {}
        for (_, cause, task), loss in self.days.items():
            found[cause, task] = found.get((cause, task), NOTHING) + loss
        rows = [(short(cause), task, loss) for (cause, task), loss in found.items()]
        return sorted(rows, key=lambda row: (-row[2].ms, -row[2].runs, row[:2]))

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        days = [
            {"date": str(_EPOCH + timedelta(day)), "cause": cause, "task": task, **asdict(loss)}
            for (day, cause, task), loss in sorted(self.days.items())
        ]
        return {"days": days, "incidents": {name: asdict(loss) for name, loss in self.deaths.items()}}


def read(ledger: Ledger) -> Losses:
    """Read the sums, in one round trip.

    Raises:
        LedgerUnavailable: Redis is away.
    """
    with clear_errors("reading what deaths cost"):
        pipe = ledger.client.pipeline(transaction=False)
        pipe.hgetall(ledger.keys.of("cost"))
        pipe.time()
        raw, (seconds, _) = pipe.execute()
    return Losses.of({decoded(name): whole(number) for name, number in raw.items()}, seconds // 86_400)


def _least(loss: Loss) -> Loss:
    return replace(loss, least=loss.ms)


def _span(ms: int) -> str:
    return span_in_two(ms / 1000)
