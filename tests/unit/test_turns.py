"""The order of suspects that do not all fit: the likeliest poison first (NEW-1)."""

from __future__ import annotations

import itertools
import random

import pytest

from celery_poison.causes import Evidence
from celery_poison.rules.doubts import turn

CONVICTED, GREW = (True, False), (True, False)
#: From the likeliest on; it may not be known.
RAN_MS = (1, 250, 60_000, 0)
EVERY = [*itertools.product(CONVICTED, GREW, RAN_MS)]


def _turn(convicted: bool, grew: bool, ran_ms: int) -> tuple[bool, bool, int, float]:
    return turn(is_convicted=convicted, evidence=Evidence(near_limit=grew), ran_ms=ran_ms)


def test_NEW_1_convicted_tasks_come_first_then_what_took_memory_then_the_youngest_start() -> None:
    """``EVERY`` is in that order by itself."""
    shuffled = EVERY.copy()
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled, key=lambda each: _turn(*each)) == EVERY
    assert len({_turn(*each) for each in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    ("evidence", "grew"),
    [
        (Evidence(), False),
        (Evidence(near_limit=True), True),
        (Evidence(near_limit=False), False),
        (Evidence(oom=True), True),
        (Evidence(oom=False), False),
    ],
)
def test_NEW_1_memory_is_what_its_last_death_tells(evidence: Evidence, grew: bool) -> None:
    assert turn(is_convicted=False, evidence=evidence, ran_ms=1) == _turn(False, grew, 1)
