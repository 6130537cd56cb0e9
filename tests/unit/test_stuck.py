"""After how long nobody can be working on a message any more."""

from __future__ import annotations

import math

import pytest

from celery_poison.desk.stranded import StuckKind, is_stuck

#: Kind, whether its owner lives -> seconds after which it is stuck, at an activation interval of 10 s and a
#: visibility timeout of an hour.
PATIENCE = {
    (StuckKind.CANDIDATE, None): 300,
    (StuckKind.CANDIDATE, True): 3600,
    (StuckKind.CANDIDATE, False): 30,
    (StuckKind.PARKED, None): 30,
    (StuckKind.PARKED, True): math.inf,
    (StuckKind.PARKED, False): 30,
    (StuckKind.UNACKED, None): 3900,
    (StuckKind.UNACKED, True): 30,
    (StuckKind.UNACKED, False): 30,
}


def test_NEW_9_every_kind_is_judged_for_every_owner() -> None:
    assert set(PATIENCE) == {(kind, lives) for kind in StuckKind for lives in (None, True, False)}


@pytest.mark.parametrize(("kind", "lives"), PATIENCE)
def test_NEW_9_a_message_is_stuck_once_its_patience_is_over_and_not_before(
    kind: StuckKind, lives: bool | None
) -> None:
    patience = PATIENCE[kind, lives]
    assert not is_stuck(kind, min(patience, 1e9), lives, activation=10, visibility=3600)
    assert is_stuck(kind, patience + 1, lives, activation=10, visibility=3600) == (patience < math.inf)
