"""How much more deaths vary than chance alone explains: hosts and tasks have good and bad days (NEW-22)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

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
        found: Floats = np.maximum(excess, 0.0) / np.maximum(squares, _NOTHING)
        return found
