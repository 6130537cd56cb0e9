"""The plan of one run: which fault strikes when and whom, made up front from a seed; and a shorter one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

#: Seconds of peace at the beginning, and the shortest and longest pause between two faults.
PEACE = 3.0
PAUSE = (2.0, 6.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at: seconds after the load has begun.
        name: as in the table of docs/chaos.md.
        worker: number of the worker it strikes, from 1, if it strikes one.
        dice: from 0 to 1, for what else there is to choose.
    """

    at: float
    name: str
    worker: int
    dice: float


def make_plan(names: Sequence[str], seconds: float, seed: int, workers: int) -> list[Fault]:
    """Return faults for so many seconds; every name comes up before one of them comes again.

    The order of the names makes no difference.
    """
    names = sorted(names)
    dice = random.Random(f"{seed}/{','.join(names)}/{workers}")
    plan: list[Fault] = []
    deck: list[str] = []
    at = PEACE
    while names and at < seconds:
        deck = deck or dice.sample(names, len(names))
        plan.append(Fault(round(at, 2), deck.pop(), dice.randint(1, workers), round(dice.random(), 4)))
        at += dice.uniform(*PAUSE)
    return plan


# --- a shorter one --------------------------------------------------------------------------------

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
