"""One model of deaths over all dimensions together, so that a bad task does not colour its host (NEW-7).

A quasi-Poisson regression. Every task has a rate of its own, drawn towards that of the fleet; to these are
added, one after another, the times, hosts, releases, queues, forms of arguments, sizes and fingerprints that
had more deaths than the rest of the model leaves them. What is added first explains most; what is then left
of the others is judged beside it. docs/pipeline-tables.md says what each figure means.

Four things keep it from false accusations (NEW-22):

- Two exposures. Some causes strike per second of run time, others per start, and the journal does not say
  which. All is fitted for both, and only what both accuse is accused; the milder figures are reported.
- Dispersion. Hosts and tasks have good and bad days. How much the days of all *others* vary widens what
  chance may bring to one.
- A slow trend of all risks is fitted, and what it would explain as well is no evidence against a release.
- Time is a dimension: an outage explains its deaths before the release that was in force may.

The fit is ours: statsmodels' GLM would replace ``_Model.fit`` alone, takes 40 times as long at 44 columns,
and refuses deaths without run time. A test holds the one against the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from celery_poison.pipeline.dispersion import Codes, Floats, Trend, Varying

#: The share of false accusations that is accepted: where nothing is to blame, the share of such histories.
FALSE_SHARE = 0.05
#: Each task starts as if so many deaths had been seen where as many were expected: no data, no effect.
PRIOR = 0.5
#: A single death accuses nobody.
LEAST_DEATHS = 2.0
_NOTHING = 1e-12


@dataclass(frozen=True)
class RunGroups:
    """Runs that have everything in common, counted.

    Attributes:
        deaths, seconds, starts: of each cell: deaths, run time, and runs begun.
        task: number of its task, or -1.
        codes: dimension -> number of its element in that dimension, or -1.
        seen: dimension -> how many elements there are, those without a death among them; by default as many
            as have a number.
        known: dimension -> elements whose deaths are their own, as trials have proved.
        parts: dimensions of which each element belongs to one task. What such a one explains says nothing
            about the rest of its task.
        blocks: dimension -> number of what varies as a whole, such as each host's days.
        siblings: dimensions whose elements differ by nature, so that one must stand out among the others.
        wide: dimension -> another one. An excess must be there without its worst element of that, too.
        days: number of the day of each cell; by default all are of one.
    """

    deaths: Floats
    seconds: Floats
    starts: Floats
    task: Codes
    codes: Mapping[str, Codes]
    seen: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, Collection[int]] = field(default_factory=dict)
    parts: Collection[str] = ()
    blocks: Mapping[str, Codes] = field(default_factory=dict)
    siblings: Collection[str] = ()
    wide: Mapping[str, str] = field(default_factory=dict)
    days: Floats | float = 0.0


class Judged(NamedTuple):
    """The model's judgement of one element.

    Attributes:
        deaths, expected: with the run time it had, in the company it had, were it like the others.
        low, high: 95 % interval of ``deaths / expected``.
        p: how often chance alone brings that many deaths; q: the same for everything at least as suspicious
            together, as false discovery rate (Benjamini and Hochberg), times the number of dimensions.
        explains: whether the model needs it, beside the others, to explain the deaths.
        elsewhere: of a task, further deaths, which one of its parts explains.
        by_start: what is said where starts alone are the exposure.
    """

    dimension: str
    code: int
    deaths: float
    expected: float
    low: float
    high: float
    p: float
    q: float
    explains: bool
    elsewhere: float = 0.0
    by_start: Judged | None = None


def judge(cells: RunGroups) -> list[Judged]:
    """Return every element that was in a death, tasks last; in no other order."""
    # An accusation needs both: one of them is enough to ask whether it is one host's.
    models = [_Model(cells, cells.seconds), _Model(replace(cells, wide={}), cells.starts)]
    for model in models:
        model.grow()
    elements = [model.elements() for model in models]
    # A part that only one of them accuses is not told: its deaths must not be missing from its task's.
    agreed = {
        name: models[0].dimensions[name].inside & models[1].dimensions[name].inside for name in cells.parts
    }
    for model in models:
        model.keep(agreed)
    by_both = ([*of, *model.tasks()] for of, model in zip(elements, models, strict=True))
    return [_milder(*both) for both in zip(*by_both, strict=True)]


def _milder(by_second: Judged, by_start: Judged) -> Judged:
    """Return what speaks less against an element; accused is what both accuse."""
    told = max(by_second, by_start, key=lambda each: each.p)
    explains = by_second.explains and by_start.explains
    return told._replace(q=max(by_second.q, by_start.q), explains=explains, by_start=by_start)


def q_values(p: Floats, seen: int) -> Floats:
    """Return the false discovery rates (Benjamini and Hochberg) of ``p``.

    Args:
        seen: how many were looked at; those that are not in ``p`` had no death, and so a p of 1.
    """
    if not len(p):
        return p
    order, told = np.argsort(p), np.empty(len(p))
    rates = p[order] * (len(p) / np.arange(1, len(p) + 1))
    told[order] = np.minimum(1.0, np.minimum.accumulate(rates[::-1])[::-1])
    return np.minimum(1.0, told * max(seen, len(p)) / len(p))


def chance(deaths: Floats, expected: Floats, of: Floats) -> Floats:
    """Return how likely at least ``deaths`` are of all that there were; they need not be whole (binomial).

    Args:
        of: what is expected of all among which they are counted: the model knows their sum.
    """
    others = np.maximum(of - deaths, 0.0) + 1
    share = np.minimum(expected / np.maximum(of, _NOTHING), 1.0)
    told: Floats = np.where(deaths > 0, special.betainc(np.maximum(deaths, _NOTHING), others, share), 1.0)
    return told


def interval(deaths: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """Return the exact 95 % interval (Garwood) of ``deaths / expected``."""
    low = np.where(deaths > 0, special.gammaincinv(np.maximum(deaths, _NOTHING), 0.025), 0.0)
    return low / expected, special.gammaincinv(deaths + 1.0, 0.975) / expected


def chance_of_change(deaths: float, time: float, before: float, time_before: float) -> float | None:
    """Return how likely at least ``deaths`` of all of them fall into ``time``, if nothing had changed.

    None where one of the two spans has no run time: nothing can be compared.
    """
    if time <= 0 or time_before <= 0:
        return None
    part = time / (time + time_before)
    return float(special.betainc(deaths, before + 1, part)) if deaths > 0 else 1.0


class _Dimension:
    """The elements of one dimension, and what those in the model multiply the deaths by."""

    def __init__(self, codes: Codes, deaths: Floats, prior: float = 0.0) -> None:
        self._prior = prior
        self.size = int(codes.max(initial=-1)) + 1
        # Rows without an element have one of their own, which is never in the model.
        self.codes = np.where(codes < 0, self.size, codes)
        self.deaths = self.sums(deaths)
        self.times = np.ones(self.size + 1)
        self.inside = np.zeros(self.size + 1, dtype=bool)

    def sums(self, values: Floats) -> Floats:
        """Add up ``values`` by element."""
        return np.bincount(self.codes, values, self.size + 1).astype(np.float64)

    def alone(self, mean: Floats) -> Floats:
        """Return the expected deaths of each element without its own effect."""
        return np.maximum(self.sums(mean) / self.times, _NOTHING)

    @property
    def moves(self) -> npt.NDArray[np.bool_]:
        """Return which elements have, or had, an effect of their own."""
        return np.asarray(self.inside | (self.times != 1))

    def step(self, codes: Codes, mean: Floats) -> Floats:
        """Make each effect what explains the deaths best beside all others; return by what each changes."""
        alone = np.maximum(np.bincount(codes, mean, self.size + 1) / self.times, _NOTHING)
        own = (np.maximum(self.deaths, _NOTHING) + self._prior) / (alone + self._prior)
        times = np.where(self.inside, own, 1.0)
        changed, self.times = times / self.times, times
        return np.asarray(changed)


class _Model:
    def __init__(self, cells: RunGroups, exposure: Floats) -> None:
        self._cells, deaths = cells, cells.deaths
        # Runs of an unknown task are one more task.
        task = np.where(cells.task < 0, cells.task.max(initial=-1) + 1, cells.task)
        self._tasks = _Dimension(task, deaths, PRIOR)
        self._tasks.inside[:] = True
        self.dimensions = {name: _Dimension(codes, deaths) for name, codes in cells.codes.items()}
        for name, known in cells.known.items():
            self.dimensions[name].inside[[*known]] = True
        self._known: dict[tuple[str, str], Varying] = {}
        self._trend, self._trending = Trend(np.broadcast_to(cells.days, deaths.shape)), False
        self.mean = exposure.copy()

    def fit(self) -> None:
        """Make the likelihood, with its prior, as large as it gets: one dimension after the other, in rounds.

        Each step has a closed form, and none can overshoot; the sum of it all is concave. Cells that every
        effect treats alike are one in here.
        """
        moving = [each for each in (self._tasks, *self.dimensions.values()) if each.moves.any()]
        first, alike = self._alike(moving)
        began: Floats = np.bincount(alike, self.mean).astype(np.float64)
        deaths: Floats = np.bincount(alike, self._cells.deaths).astype(np.float64)
        mean, codes = began.copy(), [each.codes[first] for each in moving]
        for _ in range(500):
            before = mean.copy()
            mean *= deaths.sum() / max(mean.sum(), _NOTHING)
            for each, of in zip(moving, codes, strict=True):
                mean *= each.step(of, mean)[of]
            if self._trending:
                mean *= self._trend.step(first, deaths, mean)
            if np.abs(mean - before).sum() <= 1e-7 * max(mean.sum(), _NOTHING):
                break
        self.mean *= (mean / np.maximum(began, np.finfo(float).tiny))[alike]

    def _alike(self, moving: Iterable[_Dimension]) -> tuple[Codes, Codes]:
        """Return the first cell of each group that all effects treat alike, and the group of each cell."""
        alike = np.unique(self._trend.days * self._trending, return_inverse=True)[1]
        for each in moving:
            keys = alike * (each.size + 2) + np.where(each.moves[each.codes], each.codes, -1)
            _, first, alike = np.unique(keys, return_index=True, return_inverse=True)
        return first, alike

    def grow(self) -> None:
        """Add what explains deaths until nothing suspicious is left, then drop what is not needed.

        The trend comes last: it would take half of the effect of a release that stays in force, and then is
        judged beside it.
        """
        for self._trending in (False, True):
            self.fit()
            self._add()
        for told in self.elements():
            if not told.explains and told.code not in self._cells.known.get(told.dimension, ()):
                self.dimensions[told.dimension].inside[told.code] = False
        self.fit()

    def _add(self) -> None:
        for _ in range(100):
            fresh = self._most_suspicious()
            if not fresh:
                break
            for told in fresh:
                self.dimensions[told.dimension].inside[told.code] = True
            self.fit()

    def keep(self, agreed: Mapping[str, npt.NDArray[np.bool_]]) -> None:
        """Drop the effects of all elements of some dimensions but these."""
        for name, inside in agreed.items():
            self.dimensions[name].inside[:] = inside
        self.fit()

    def _most_suspicious(self) -> list[Judged]:
        """Return those whose excess is largest, none of which shares a death with another."""
        found = [
            told
            for told in self.elements()
            if told.q < FALSE_SHARE
            and told.deaths >= LEAST_DEATHS
            and not self.dimensions[told.dimension].inside[told.code]
        ]
        gains = self._gains()
        found.sort(key=lambda told: -gains[told.dimension][told.code])
        free, fresh = self._cells.deaths > 0, []
        for told in found:
            mine = (self._cells.deaths > 0) & (self.dimensions[told.dimension].codes == told.code)
            if free[mine].all():
                free &= ~mine
                fresh.append(told)
        return fresh

    def _gains(self) -> dict[str, Floats]:
        """Return by how much each element's own effect would improve the likelihood; unlike p never zero.

        Where others have an effect already, it is the rest that counts, if that says more: a bad release in
        which an outage falls stands behind each of its days otherwise.
        """
        free = ~np.any([each.inside[each.codes] for each in self.dimensions.values()], axis=0)
        found = {}
        for name, each in self.dimensions.items():
            rest = _gain(each.sums(self._cells.deaths * free), each.alone(self.mean * free))
            found[name] = np.maximum(_gain(each.deaths, each.alone(self.mean)), rest)
        return found

    def elements(self) -> list[Judged]:
        """Return every element but the tasks: its deaths against those that the rest of the model expects."""
        found = []
        for name, each in self.dimensions.items():
            codes = np.flatnonzero(each.deaths[: each.size] > 0)
            deaths, expected = each.deaths[codes], each.alone(self.mean)[codes]
            spread = self._dispersion(name, each)[codes]
            # An effect in the model is no part of the whole that is expected without it.
            whole, own = self._whole(name, each)[codes], each.sums(self.mean)[codes]
            usual = expected * whole / np.maximum(whole - own + expected, _NOTHING)
            p = chance(deaths / spread, usual / spread, whole / spread)
            if by := self.dimensions.get(self._cells.wide.get(name, "")):
                worst = self._varying(name, each, "wide", by.codes)
                sums = worst.largest(self._cells.deaths, self.mean / each.times[each.codes], self.mean)
                died, alone, fitted = (of[codes] for of in sums)
                rest = (deaths - died, usual * (1 - alone / expected), whole - fitted)
                p = np.maximum(p, chance(*(of / spread for of in rest)))
            # Not by the highest number: elements of other windows have numbers, too.
            seen = self._cells.seen.get(name, np.unique(each.codes[each.codes < each.size]).size)
            q = self._q_values(p, seen)
            explains = each.inside[codes] & (q < FALSE_SHARE)
            bounds = interval(deaths / spread, expected / spread)
            columns = (codes, deaths, expected, *bounds, p, q, explains)
            found += [Judged(name, *row) for row in zip(*(c.tolist() for c in columns), strict=True)]
        return found

    def _q_values(self, p: Floats, seen: int) -> Floats:
        """Return false discovery rates over all dimensions together: each may accuse an innocent."""
        return np.minimum(1.0, q_values(p, seen) * (len(self.dimensions) + 1))

    def tasks(self) -> list[Judged]:
        """Return every task: its deaths against those that the calmer tasks would have had in its place.

        What the model explains otherwise is taken into account on both sides. The worst is taken out first,
        so that the next is compared with those that are left.
        """
        rest = np.ones(len(self.mean), dtype=bool)
        for part in (self.dimensions[name] for name in self._cells.parts):
            rest &= ~part.inside[part.codes]
        tasks, size = self._tasks, self._tasks.size
        deaths = tasks.sums(self._cells.deaths * rest)[:size]
        # What each task would expect at the rate of the fleet.
        share = (tasks.sums(self.mean * rest) / tasks.times)[:size]
        calm = np.ones(size, dtype=bool)
        spread = self._dispersion("task", tasks)[:size]
        while True:
            p, low, high, usual = _against(deaths, share, calm, spread)
            q = self._q_values(p, size)
            suspects = calm & (deaths >= LEAST_DEATHS) & (q < FALSE_SHARE)
            if not suspects.any():
                break
            calm[np.argmin(np.where(suspects, p, 2.0))] = False
        elsewhere = tasks.deaths[:size] - deaths
        columns = (np.arange(size), deaths, usual, low, high, p, q, ~calm, elsewhere)
        known = np.flatnonzero(tasks.deaths[: int(self._cells.task.max(initial=-1)) + 1] > 0)
        return [Judged("task", *row) for row in zip(*(c[known].tolist() for c in columns), strict=True)]

    def _task_of(self, each: _Dimension) -> Codes:
        """Return the task of each element of a dimension whose elements are parts of tasks."""
        owner = np.zeros(each.size + 1, dtype=np.int64)
        owner[each.codes] = self._tasks.codes
        return owner

    def _whole(self, name: str, each: _Dimension) -> Floats:
        """Return by element what is expected of its task, if it is a part of one, else of the fleet."""
        if name in self._cells.parts:
            return self._tasks.sums(self.mean)[self._task_of(each)]
        return np.full(each.size + 1, self.mean.sum())

    def _dispersion(self, name: str, each: _Dimension) -> Floats:
        """Return by element how many times as much as by Poisson's law its deaths may vary."""
        families = dict(self._cells.blocks)
        if name in self._cells.siblings:
            families["siblings"] = each.codes  # beside the days of each host, where these are hosts
        spread, alone = np.ones(each.size + 1), self.mean / each.times[each.codes]
        for family, blocks in families.items():
            varying = self._varying(name, each, family, blocks)
            if family == "task" and name in self._cells.parts:
                # The other days of its own task are no measure of a bad release of that task.
                others = self._varying("task", self._tasks, family, blocks)
                varies = others.variance(self._cells.deaths, self.mean)[self._task_of(each)]
            else:
                varies = varying.variance(self._cells.deaths, self.mean)
            spread = np.maximum(spread, 1 + varies * varying.concentration(alone))
        return spread * self._trend.inflation(each.codes, each.size + 1, alone)

    def _varying(self, name: str, each: _Dimension, family: str, blocks: Codes) -> Varying:
        key = name, family
        if key not in self._known:
            self._known[key] = Varying(each.codes, each.size + 1, blocks)
        return self._known[key]


def _gain(deaths: Floats, expected: Floats) -> Floats:
    """Return the logarithm of the ratio of likelihoods; 0 where there are not more deaths than expected."""
    return np.where(deaths > expected, special.xlogy(deaths, deaths / expected) - deaths + expected, 0.0)


def _against(
    deaths: Floats, share: Floats, calm: npt.NDArray[np.bool_], spread: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Compare each task with all other calm ones, given how many deaths both have together (binomial).

    Args:
        spread: how many times as much as by that law they vary.

    Returns:
        p; the 95 % interval (Clopper and Pearson) of the one rate by the other; deaths at the rate of the
        others, who are taken to have had half a death at least.
    """
    others = deaths[calm].sum() - np.where(calm, deaths, 0.0)
    room = np.maximum(share[calm].sum() - np.where(calm, share, 0.0), _NOTHING)
    usual = np.maximum(others, PRIOR) * np.maximum(share, _NOTHING) / room
    deaths, others = deaths / spread, others / spread
    mine = np.maximum(deaths, _NOTHING)
    p = np.where(deaths > 0, special.betainc(mine, others + 1, share / (share + room)), 1.0)
    low = np.where(deaths > 0, special.betaincinv(mine, others + 1, 0.025), 0.0)
    high = np.where(others > 0, special.betaincinv(deaths + 1, np.maximum(others, _NOTHING), 0.975), 1.0)
    odds = np.maximum(share, _NOTHING) / room
    with np.errstate(divide="ignore"):
        bounds = low / (1 - low) / odds, high / (1 - high) / odds
    return p, *bounds, usual
