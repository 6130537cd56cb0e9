"""What the death of a worker proves about a suspect that was on trial there: a doubt, or a share of one; and
which of several suspects is tried first.

Pure, as :mod:`celery_poison.decide`, which asks it. docs/verdict.md has the rules and the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from celery_poison.causes import Evidence
from celery_poison.model import History

#: A doubt that nothing else shares, in the unit of ``History.doubt``; so many of them convict.
WHOLE, PROOF = 1000, 3
#: After so many doubts in which no outsider has a share, nothing else runs in the worker of the next trial.
SHARED_DOUBTS = 2
#: Seconds, before a death, for which others are counted.
LATELY = (600.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Blow:
    """The death of a worker, as one start in it met it.

    Attributes:
        together: starts that ran in that worker, in cells or not, this one included.
        ran_s: seconds for which it had run.
        starts: of its message so far, this one included.
        deaths: of workers, this one included, in each of the times before that :data:`LATELY` names.
        workers: how many live.
    """

    together: int = 1
    ran_s: float = 0.0
    starts: int = 1
    deaths: Sequence[int] = (1, 1)
    workers: int = 1

    @property
    def outsiders(self) -> int:
        """The shares of killers outside of the workers: one for each percent of their chance.

        That is the chance that a worker dies in so many seconds, if as many die as did in the ten minutes
        before, or in the hour before. Each start of this message may have met one of these: none of theirs.
        """
        rows = zip(self.deaths, LATELY, strict=True)
        per_cent, workers = 100 * self.ran_s, max(1, self.workers)
        return max(int(per_cent * max(0, deaths - self.starts) / (time * workers)) for deaths, time in rows)

    @property
    def share(self) -> int:
        """The doubt that the blow adds to a suspect: of n that share one, each has 1/n (NEW-1).

        All share it that ran in the worker, and outsiders.
        """
        return int(WHOLE / (max(1, self.together) + self.outsiders))


#: In a fleet in which nothing else runs and dies.
NOTHING_ELSE = Blow()


def proves(history: History, blow: Blow) -> bool:
    """Whether this blow, after those before, is proof."""
    return history.doubt + blow.share >= PROOF * WHOLE


def needs_idle_worker(history: History) -> bool:
    """Whether nothing may run beside its next trial, so that nothing else would share a doubt."""
    return history.spoilt >= SHARED_DOUBTS


def turn(*, is_convicted: bool, evidence: Evidence, ran_ms: int) -> tuple[bool, bool, int, float]:
    """Return by what suspects are sorted that do not all fit: the likeliest poison comes first (NEW-1).

    Args:
        is_convicted: messages of its task are in quarantine that were convicted.
        evidence: of its last death; it may have taken the memory, where that was short. Who grew most by
            the black box comes first, and who did not grow is no better than who died elsewhere (NEW-19).
        ran_ms: how long it had run by then; 0: not known. A poison seldom waits.
    """
    grown = evidence.grown_kb
    grew = bool(evidence.oom or (evidence.near_limit if grown is None else grown > 0))
    return not is_convicted, not grew, -(grown or 0), ran_ms or math.inf
