"""How much more deaths vary than chance alone explains (NEW-22): good and bad days, and a slow trend."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

#: By what logarithm a slow trend changes the risk from each day to the next: it doubles within a week.
SLOW = 0.1
_LEAST_BLOCKS = 3
_NOTHING = 1e-12


class Varying:
    """The elements of one dimension, and the blocks, such as days of hosts, that their runs belong to.

    Args:
        codes, blocks: number of the element and of the block of each cell; size: how many elements.
    """

    def __init__(self, codes: Codes, size: int, blocks: Codes) -> None:
        self._size, self._blocks = size, blocks
        self._many = int(blocks.max(initial=-1)) + 1
        keys, self._pair = np.unique(codes * self._many + blocks, return_inverse=True)
        self._element, self._block = keys // self._many, keys % self._many

    def _by_pair(self, values: Floats) -> Floats:
        return np.bincount(self._pair, values, len(self._block)).astype(np.float64)

    def _by_element(self, pairs: Floats) -> Floats:
        return np.bincount(self._element, pairs, self._size).astype(np.float64)

    def concentration(self, mean: Floats) -> Floats:
        """Return by element how many deaths are expected in a block of its own, on average."""
        own = self._by_pair(mean)
        return self._by_element(own**2) / np.maximum(self._by_element(own), _NOTHING)

    def largest(self, deaths: Floats, alone: Floats, fitted: Floats) -> list[Floats]:
        """Return of all three the sums of each element in that block where ``deaths`` exceed ``alone`` most.

        0 for an element of so few blocks that too little would be left without one.
        """
        sums = [self._by_pair(values) for values in (deaths, alone, fitted)]
        order = np.argsort(sums[0] - sums[1], kind="stable")
        largest = np.zeros(self._size, dtype=np.int64)
        largest[self._element[order]] = order  # the last one stays
        several = self._by_element((sums[1] > 0).astype(np.float64)) >= _LEAST_BLOCKS
        return [np.where(several, values[largest], 0.0) for values in sums]

    def variance(self, deaths: Floats, mean: Floats) -> Floats:
        """Return by element the relative variance of the blocks' risk, by the deaths of all other elements.

        By moments: what the squares are above those of Poisson's law, and above what these vary by chance.
        """
        own = self._by_pair(deaths), self._by_pair(mean)
        every = [np.bincount(self._blocks, values, self._many) for values in (deaths, mean)]
        rest = [whole[self._block] - part for whole, part in zip(every, own, strict=True)]

        def products(one: int, other: int) -> Floats:
            whole = every[one] * every[other]
            left_out = self._by_element(rest[one] * rest[other] - whole[self._block])
            return np.asarray(whole.sum() + left_out)

        died, expected = (every[n].sum() - self._by_element(own[n]) for n in (0, 1))
        rate = died / np.maximum(expected, _NOTHING)
        squares = rate**2 * products(1, 1)
        excess = products(0, 0) - 2 * rate * products(0, 1) + squares - died
        excess -= np.sqrt(2 * squares + np.maximum(died, 0.0))
        return np.asarray(np.maximum(excess, 0.0) / np.maximum(squares, _NOTHING))


class Trend:
    """A trend of all risks, log-linear in the number of a day: the newest release does not carry what grew.

    Its slope is held near 0 as by a normal law of the width :data:`SLOW`: two days have no trend.
    """

    def __init__(self, days: Floats) -> None:
        self.days, self.slope = days, 0.0

    def step(self, cells: Codes, deaths: Floats, mean: Floats) -> Floats:
        """Move the slope towards what explains the deaths best (Newton); return by what each cell changes."""
        days = self.days[cells]
        apart = days - mean @ days / max(mean.sum(), _NOTHING)
        rise = (deaths - mean) @ apart - self.slope / SLOW**2
        step = float(np.clip(rise / (mean @ apart**2 + SLOW**-2), -SLOW, SLOW))
        self.slope += step
        return np.asarray(np.exp(step * apart))

    def inflation(self, codes: Codes, size: int, mean: Floats) -> Floats:
        """Return by what the variance of each element's excess grows, since the same deaths tell the slope.

        What a trend would explain as well is no evidence: a release of the last third has a third of its own.
        """
        whole = max(mean.sum(), _NOTHING)
        apart = self.days - (mean * self.days).sum() / whole
        own, late = (np.bincount(codes, weights, size) for weights in (mean, mean * apart))
        between = late**2 / np.maximum(own * (1 - own / whole), _NOTHING)
        spread = (mean * apart**2).sum()
        return np.asarray((spread + SLOW**-2) / (np.maximum(spread - between, 0.0) + SLOW**-2))
