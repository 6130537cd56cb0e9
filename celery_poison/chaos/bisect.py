"""Finds the shortest list of faults that still fails: delta debugging, with a real run for each question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shortest(items: Sequence[T], fails: Callable[[list[T]], bool], runs: int) -> list[T]:
    """Return a short part of ``items``, in order, that still fails; no single one can be left out of it.

    Args:
        fails: whether a part fails. The whole did. Who fails at random may be asked in vain.
        runs: how often it may be asked; then the shortest so far is the answer.
    """
    best, pieces = list(items), 2
    while len(best) > 1 and runs > 0:
        size = -(-len(best) // pieces)
        chunks = [best[start : start + size] for start in range(0, len(best), size)]
        rests = [[one for other in chunks if other is not chunk for one in other] for chunk in chunks]
        for part in chunks + (rests if len(chunks) > 2 else []):
            if runs <= 0:
                return best
            runs -= 1
            if fails(part):
                best, pieces = part, 2 if part in chunks else max(pieces - 1, 2)
                break
        else:
            if pieces >= len(best):
                return best
            pieces = min(len(best), 2 * pieces)
    return best
