"""The plan of one run: made up front from a seed, carried out; and a shorter one."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.chaos.faults import KINDS
from tests.chaos.runs import Blow, Fault
from tests.chaos.stage import Stage

#: Seconds of peace at the beginning, and the shortest and longest pause between two faults.
PEACE = 3.0
PAUSE = (2.0, 6.0)
#: Seconds between two faults of one owner: two short ones shall not look like a long one.
REST = 3.0


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


def play(
    plan: Sequence[Fault], stage: Stage, seconds: float, say: Callable[[str], None]
) -> tuple[list[Blow], list[str]]:
    """Strike a stage for so many seconds, each fault in a thread of its own, so that they meet.

    Returns:
        What was done, in the order of its beginnings; and faults that could not be done, and why.
    """
    blows: list[Blow] = []
    broken: list[str] = []
    owners: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def strike(fault: Fault) -> None:
        kind = KINDS[fault.name]
        owned = kind.owns.format(worker=fault.worker)
        with owners[owned] if owned else contextlib.nullcontext():
            if stage.stopping.is_set():
                return
            blow = Blow(fault.name, time.monotonic())
            blows.append(blow)
            try:
                kind.do(stage, fault, blow)
            except Exception as error:  # told, and a failure of the run
                broken.append(f"{fault.name}: {error!r}")
            blow.ended = time.monotonic()
            say(f"{fault.at:8.2f} s  {blow.name} {' '.join(blow.lives)} {blow.note}")
            if owned:
                stage.wait(REST)

    began = time.monotonic()
    with ThreadPoolExecutor(1 + len(plan)) as threads:
        for fault in plan:
            stage.wait(began + fault.at - time.monotonic())
            threads.submit(strike, fault)
        stage.wait(began + seconds - time.monotonic())
    return blows, broken


T = TypeVar("T")


def shortest(items: Sequence[T], fails: Callable[[list[T]], bool], runs: int) -> list[T]:
    """Return a short part of ``items``, in order, that still fails, by leaving out ever smaller pieces.

    Args:
        fails: whether a part fails. The whole did. Who fails at random may be asked in vain.
        runs: how often it may be asked; then the shortest so far is the answer.
    """
    best, size = list(items), -(-len(items) // 2)
    while size:
        at = 0
        while at < len(best) > size and runs > 0:
            runs -= 1
            if fails(part := best[:at] + best[at + size :]):
                best = part
            else:
                at += size
        size //= 2
    return best
