"""Medians and how far they can be trusted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

#: Resamplings of the bootstrap; the same seed gives the same interval for the same figures.
_SAMPLES, _SEED = 10_000, 1


class Estimate(NamedTuple):
    """A median with its 95 % bootstrap interval, and the extremes."""

    median: float
    low: float
    high: float
    least: float
    most: float


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of ``values``, the interval in which it lies, and the extremes."""
    dice = random.Random(_SEED)
    medians = sorted(median(dice.choices(values, k=len(values))) for _ in range(_SAMPLES))
    low, high = medians[int(0.025 * _SAMPLES)], medians[int(0.975 * _SAMPLES)]
    return Estimate(median(values), low, high, min(values), max(values))
