"""Suspects that are tried together: one, mostly; of very many a group, whose death proves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo

from celery_poison.verdict import smaller_group

if TYPE_CHECKING:
    from celery_poison.worker.ending.request import GuardedRequest

#: So many suspects are tried one by one.
FEW = 32
#: Pools whose tasks run together in one process anyway.
CONCURRENT = ("thread", "gevent", "eventlet")

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Trial:
    """One suspect, and who is to hear of it: what Celery hands to a pool.

    Attributes:
        soft, hard: time limits, in seconds.
    """

    request: GuardedRequest
    arguments: tuple[Any, ...]
    accepted: Callable[[int, float], Any]
    timed_out: Callable[[bool, float], Any]
    ended: Callable[[Any], Any]
    failed: Callable[[ExceptionInfo], Any]
    soft: float | None
    hard: float | None


def how_many(waiting: Collection[GuardedRequest], pool: str, most: int) -> int:
    """Return how many of those who wait, in their order, are tried next, together.

    Args:
        pool: the name of its module.
        most: how many may ever be.
    """
    if len(waiting) <= FEW or pool not in CONCURRENT:
        return 1
    count = 0
    for request in waiting:
        most = min(most, _most_beside(request, most))
        if count >= most:
            break
        count += 1
    return max(1, count)


def _most_beside(request: GuardedRequest, most: int) -> int:
    if request.poison is None or not request.poison.history.may_be_grouped:
        return 1
    return request.poison.history.group or most


class Group:
    """Trials that one cell is at, and their time limits.

    Attributes:
        trials: they, in the order in which the cell gets them.
        left: who of them has not ended, by their numbers in the cell.
        begun: whether the cell has begun with them.
        overdue: the numbers of those whose hard limit is over.
        terminated_by: the signal by which somebody wants one of them to end; 0: nobody does.
    """

    def __init__(self, trials: list[Trial]) -> None:
        self.begun = False
        self.overdue: frozenset[int] = frozenset()
        self.terminated_by = 0
        self._soft_at = _NEVER
        self._hard_at: dict[int, float] = {}
        self.keep(trials)

    def keep(self, trials: list[Trial]) -> None:
        """Go on with these only."""
        self.trials = trials
        self.left = dict(enumerate(trials))
        for trial in trials:
            trial.request.companions = len(trials) - 1

    @property
    def is_shared(self) -> bool:
        """Whether its death may be the fault of another one."""
        return len(self.trials) > 1

    @property
    def half(self) -> int:
        """How many of those that are left may be tried together next."""
        return smaller_group(len(self.left))

    @property
    def name(self) -> str:
        if self.is_shared:
            return f"{len(self.left)} of {len(self.trials)} messages"
        return str(self.trials[0].request.humaninfo())

    def begin(self) -> None:
        """Start the clock. In a group nobody can be interrupted for himself: soft limits are for one only."""
        self.begun, now = True, time.monotonic()
        self._hard_at = {number: now + trial.hard for number, trial in self.left.items() if trial.hard}
        if not self.is_shared and (soft := self.trials[0].soft):
            self._soft_at = now + soft

    def pause(self) -> float:
        """Return the seconds until the next limit."""
        hard_at = (at for number, at in self._hard_at.items() if number in self.left)
        return min(self._soft_at, *hard_at, _NEVER) - time.monotonic()

    def is_over(self) -> bool:
        """Whether a hard limit is over."""
        now = time.monotonic()
        overdue = frozenset(n for n, at in self._hard_at.items() if n in self.left and now >= at)
        if overdue:
            self.overdue, self._hard_at = overdue, {}
        return bool(self.overdue)

    def is_soft_over(self) -> bool:
        """Whether the soft limit is over; told once."""
        if time.monotonic() < self._soft_at:
            return False
        self._soft_at = _NEVER
        return True
