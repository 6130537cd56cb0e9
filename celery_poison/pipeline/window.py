"""What queries ask of: which days, and which came before, ``--since`` and ``--until``; sizes (NEW-7)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

from celery_poison.errors import ConfigurationError
from celery_poison.pipeline.schema import LAST_MS

DAY_MS = 24 * 3_600_000
#: In SQL, the decade of a payload: 0 under 1 kB, 1 under 10 kB, and so on to 6 for 100 MB or more.
SIZE = "case " + " ".join(f"when payload_bytes < 1e{power} then {power - 3}" for power in range(3, 9))
SIZE += " when payload_bytes is not null then 6 end"


@dataclass(frozen=True, slots=True)
class Window:
    """Days, UTC: ``since`` is the first of them, ``until`` the first after them; None: no bound."""

    since: date | None = None
    until: date | None = None

    @classmethod
    def of(cls, since: str | None, until: str | None, last: date | None) -> Self:
        """Return the window that the options ask for.

        Args:
            last: the newest day in the lake, from which ``Nd`` counts back; None for an empty lake.

        Raises:
            ConfigurationError: one of them is no day, or nothing lies between the two.
        """
        end = _day("--until", until)
        days = re.fullmatch(r"(\d{1,4})d", since or "")
        newest = end or (last and last + timedelta(1))
        start = newest and newest - timedelta(int(days[1])) if days else _day("--since", since)
        if start and end and start >= end:
            raise ConfigurationError(f"--since {start} --until {end}: no day lies between them")
        return cls(start, end)

    def fill(self, query: str) -> str:
        """Fill in ``{recent}``: whether a ``date`` is not before the window, ``{window}``: not after it."""
        recent = f"date >= date '{self.since}'" if self.since else "true"
        within = f"date < date '{self.until}'" if self.until else "true"
        return query.replace("{recent}", recent).replace("{window}", within)

    def says(self) -> str:
        """Return the window in words; empty where nothing bounds it."""
        start = f"from {self.since} on" if self.since else ""
        return " ".join(filter(None, (start, f"up to {self.until}, exclusively" if self.until else "")))


def day(ms: int) -> str:
    """Return the name of the day of a time, by which the journal's files are apart."""
    return datetime.fromtimestamp(min(ms, LAST_MS) / 1000, UTC).date().isoformat()


def days_between(since_ms: int, until_ms: int) -> list[str]:
    """Return the names of the days of two times and of all between, in milliseconds of the epoch."""
    return [day(ms) for ms in range(since_ms // DAY_MS * DAY_MS, until_ms + 1, DAY_MS)]


def first_ms(name: str) -> int:
    """Return when a day begins, in milliseconds of the epoch."""
    return int(datetime.fromisoformat(f"{name}T00:00:00+00:00").timestamp()) * 1000


def and_the_next(days: list[str]) -> list[str]:
    """Return the days and those after them: what ran beside a death may have ended after midnight."""
    return sorted({day(first_ms(each) + n * DAY_MS) for each in days for n in (0, 1)})


def _day(option: str, text: str | None) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigurationError(f"{option} {text}: a day is wanted, as 2026-03-02, or 7d") from None
