"""The plan of one run: which fault strikes when and whom, made up front from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

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
