"""Hours in which many tasks died on many hosts: they are to explain deaths before a release may (NEW-22)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special

Floats = npt.NDArray[np.float64]

#: Fewer deaths in an hour are no outage; nor are more that chance brings once in a hundred histories.
LEAST_DEATHS, CHANCE = 5.0, 0.01
#: How unlikely the deaths of the hours before and after it are, if these belong to it.
EDGE = 0.05
_HOUR = timedelta(hours=1)


def with_times(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with the column ``time``: the outage that they belong to, else their day.

    Run time is known by day only: an outage of six hours is taken to have had a quarter of its day's.

    Args:
        cells: with ``date`` (null before the window), ``hour`` (of deaths), ``deaths``, ``ms``, ``alive``,
            ``task`` and ``host``.
    """
    cells = cells.assign(time=cells["date"])
    found = _outages(cells[cells["date"].notna()])
    if not found:
        return cells
    parts = [cells[~cells["date"].isin({date for date, _ in found})]]
    for (date, hours), name in found.items():
        mine = cells[cells["date"] == date]
        inside = mine["hour"].isin(hours)
        part = np.where(mine["hour"].notna(), inside, len(hours) / 24)
        for share, key in ((part, name), (1 - part, date)):
            scaled = {column: mine[column] * share for column in ("deaths", "ms", "alive")}
            parts.append(mine.assign(**scaled, time=key)[share > 0])
    return pd.concat(parts, ignore_index=True)


def _outages(cells: pd.DataFrame) -> dict[tuple[str, tuple[int, ...]], str]:
    """Return the hours of each outage by day, and its name; one over midnight is on two days."""
    died = cells[cells["deaths"] > 0]
    if died.empty:
        return {}
    days = pd.Index(np.sort(cells["date"].unique()))
    usual = _usual(cells, died, days)
    hours = [
        datetime.fromisoformat(str(days[d])) + h * _HOUR
        for d, h in np.argwhere(_stand_out(died, days, usual))
    ]
    found: dict[tuple[str, tuple[int, ...]], str] = {}
    for first, last in _runs(hours):
        name = f"{first:%Y-%m-%d %H:00} to {last + _HOUR:%Y-%m-%d %H:00}"
        by_day: dict[str, list[int]] = {}
        for n in range((last - first) // _HOUR + 1):
            by_day.setdefault(f"{first + n * _HOUR:%Y-%m-%d}", []).append((first + n * _HOUR).hour)
        found |= {(date, tuple(of_day)): name for date, of_day in by_day.items()}
    return found


def _table(died: pd.DataFrame, days: pd.Index[Any]) -> Floats:
    """Return deaths by day and hour."""
    counted = np.zeros((len(days), 24))
    np.add.at(counted, (days.get_indexer(died["date"]), died["hour"].to_numpy(dtype=int)), died["deaths"])
    return counted


def _usual(cells: pd.DataFrame, died: pd.DataFrame, days: pd.Index[Any]) -> Floats:
    """Return the deaths to be expected by day and hour: at the rate and by the hours of all other days."""
    deaths = _table(died, days)
    shares = [
        cells.groupby("date")[name].sum().reindex(days).to_numpy(dtype=float) for name in ("ms", "alive")
    ]
    exposure = sum(np.maximum(share, 0.0) / max(share.sum(), 1e-12) for share in shares)
    others = deaths.sum(axis=0) - deaths + 1 / 24
    rate = others.sum(axis=1) / np.maximum(exposure.sum() - exposure, 1e-12)
    usual: Floats = (rate * exposure)[:, None] * others / others.sum(axis=1, keepdims=True)
    return usual


def _stand_out(died: pd.DataFrame, days: pd.Index[Any], usual: Floats) -> npt.NDArray[np.bool_]:
    """Return which hours have too many deaths, even without the task and the host that had most of them."""
    rest = _table(died, days)
    for name in ("task", "host"):
        by_element = died.groupby([name, "date", "hour"], dropna=False)["deaths"].sum()
        most = by_element.groupby(["date", "hour"]).max()
        dates, hours = most.index.get_level_values("date"), most.index.get_level_values("hour")
        largest = np.zeros_like(rest)
        largest[days.get_indexer(dates), hours.to_numpy(dtype=int)] = most
        rest = np.minimum(rest, _table(died, days) - largest)
    p = special.gammainc(np.maximum(rest, 1e-12), usual)
    begun = ((rest >= LEAST_DEATHS) & (p < CHANCE / usual.size)).ravel()
    # What began or ended within an hour has made that hour bad, too.
    beside = np.convolve(begun, [True, True, True], "same") & (p < EDGE).ravel()
    found: npt.NDArray[np.bool_] = (begun | beside).reshape(usual.shape)
    return found


def _runs(hours: list[datetime]) -> list[tuple[datetime, datetime]]:
    """Return first and last of hours that follow each other; one between two may be missing."""
    runs: list[tuple[datetime, datetime]] = []
    for hour in hours:
        if runs and hour - runs[-1][1] <= 2 * _HOUR:
            runs[-1] = runs[-1][0], hour
        else:
            runs.append((hour, hour))
    return runs
