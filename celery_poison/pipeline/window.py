"""Which days are looked at, and which came before: ``--since`` and ``--until`` (NEW-7)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Self

from celery_poison.errors import ConfigurationError
from celery_poison.pipeline.lake import day

_DAYS = re.compile(r"(\d{1,4})d")
_DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Window:
    """Days, UTC: ``since`` is the first of them, ``until`` the first after them; None: no bound."""

    since: date | None = None
    until: date | None = None

    @classmethod
    def of(cls, since: str | None, until: str | None, last: date | None) -> Self:
        """Return what the options say.

        Args:
            last: the newest day in the lake, from which ``Nd`` counts back; None for an empty lake.

        Raises:
            ConfigurationError: one of them is no day, or nothing lies between the two.
        """
        end = _day("--until", until) if until else None
        newest = end or (last and last + timedelta(1))
        days = _DAYS.fullmatch(since or "")
        if days:
            start = newest and newest - timedelta(int(days[1]))
        else:
            start = _day("--since", since) if since else None
        if start and end and start >= end:
            raise ConfigurationError(f"--since {start} --until {end}: no day lies between them")
        return cls(start, end)

    @property
    def recent(self) -> str:
        """SQL: whether a ``date`` is in the window and not before it."""
        return f"date >= date '{self.since}'" if self.since else "true"

    @property
    def within(self) -> str:
        """SQL: whether a ``date`` is in the window or before it."""
        return f"date < date '{self.until}'" if self.until else "true"

    def as_dict(self) -> dict[str, Any]:
        return {"since": self.since and str(self.since), "until": self.until and str(self.until)}

    def says(self) -> str:
        """Return the window in words; empty where nothing bounds it."""
        start = f"from {self.since} on" if self.since else ""
        return " ".join(filter(None, (start, f"up to {self.until}, exclusively" if self.until else "")))


def days_between(since_ms: int, until_ms: int) -> list[str]:
    """Return the names of the days of two times and of all between, in milliseconds of the epoch."""
    return [day(ms) for ms in range(since_ms // _DAY_MS * _DAY_MS, until_ms + 1, _DAY_MS)]


def first_ms(name: str) -> int:
    """Return when a day begins, in milliseconds of the epoch."""
    return int(datetime.fromisoformat(f"{name}T00:00:00+00:00").timestamp()) * 1000


def and_the_next(days: list[str]) -> list[str]:
    """Return the days and those after them: what ran beside a death may have ended after midnight."""
    return sorted({day(first_ms(each) + n * _DAY_MS) for each in days for n in (0, 1)})


def _day(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{option} {text}: a day is wanted, as 2026-03-02, or 7d") from None
