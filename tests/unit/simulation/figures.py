"""What became of every message under one rule, and the figures that come of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from tests.unit.simulation.script import Kind


@dataclass(slots=True)
class Fortune:
    """What one message went through; times in seconds.

    Attributes:
        deaths: of workers and cells in which it was running.
        worker_deaths: those of whole workers.
        kills: deaths of workers and cells that it caused.
        workers_killed: whole workers that it killed.
        lost_s: run time that came to nothing.
    """

    kind: Kind
    seconds: float
    deaths: int = 0
    worker_deaths: int = 0
    kills: int = 0
    workers_killed: int = 0
    lost_s: float = 0.0
    first_death: float | None = None
    done: float | None = None
    convicted: bool = False


@dataclass(frozen=True)
class Figures:
    """One line of the table.

    Attributes:
        deaths: of whole workers.
        exposed: innocents that were running in at least one; ``judged`` may be more, see below.
        useful: run time that came to something, in seconds.
        until_caught: deaths that a poison caused until it was caught, on average; ``worst`` at most.
        late: poisons that were caught by a later death than their second.
        workers_lost: whole workers among them.
        lost: share of useful run time that was lost besides.
        clear_p50, clear_p99: seconds from an innocent's first death to its end.
    """

    deaths: int
    poisons: int
    caught: int
    until_caught: float
    worst: int
    late: int
    workers_lost: float
    exposed: int
    judged: int
    useful: float
    convicted: int
    bound: float
    lost: float
    clear_p50: float
    clear_p99: float
    unfinished: int


def figures(fortunes: Iterable[Fortune], deaths: int) -> Figures:
    """Return the figures of one rule after so many whole-worker deaths."""
    everyone = list(fortunes)
    innocent = [one for one in everyone if one.kind == "innocent"]
    poisons = [one for one in everyone if one.kind == "poison"]
    exposed = [one for one in innocent if one.worker_deaths]
    convicted = sum(one.convicted for one in innocent)
    caught = [one.kills for one in poisons if one.convicted]
    # A message that only came back without having run may be convicted too, by counting deliveries.
    judged = max(len(exposed), convicted)
    waits = sorted(one.done - one.first_death for one in exposed if one.done and one.first_death is not None)
    useful = sum(one.seconds for one in everyone if one.done is not None)
    return Figures(
        deaths=deaths,
        poisons=len(poisons),
        caught=len(caught),
        until_caught=fmean(caught) if caught else math.nan,
        worst=max(caught, default=0),
        late=sum(kills > 2 for kills in caught),
        workers_lost=fmean(one.workers_killed for one in poisons) if poisons else math.nan,
        exposed=len(exposed),
        judged=judged,
        useful=useful,
        convicted=convicted,
        bound=upper_bound(convicted, judged),
        lost=sum(one.lost_s for one in everyone) / useful if useful else math.nan,
        clear_p50=median(waits) if waits else math.nan,
        clear_p99=rank(waits, 0.99),
        unfinished=sum(one.done is None and not one.convicted for one in everyone),
    )


def rank(ordered: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` of the sorted values lie."""
    return ordered[math.ceil(part * len(ordered)) - 1] if ordered else math.nan


def upper_bound(hits: int, trials: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson bound of a rate (with no hit: about three in ``trials``)."""
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(hits, trials, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(hits: int, trials: int, rate: float) -> float:
    """Return the probability of no more than ``hits`` in so many trials at that rate."""
    if rate >= 1.0:
        return 0.0
    log_hit, log_miss = math.log(rate) if rate else -math.inf, math.log1p(-rate)
    total = 0.0
    for count in range(hits, -1, -1):
        ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        part = math.exp(ways + (count * log_hit if count else 0.0) + (trials - count) * log_miss)
        total += part
        if part < total * 1e-15:
            break
    return total
