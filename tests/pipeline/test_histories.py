"""Generated histories of any length (NEW-7). No Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from examples.histories import World
from examples.histories.troubles import Troubles
from examples.histories.world import BAD_RELEASE, DAY_MS, KINDS


@pytest.mark.parametrize(("days", "bad"), [(4, "2026.2"), (18, "2026.6"), (30, "2026.7")])
def test_a_short_history_has_everything_planted_in_it_too(days: int, bad: str) -> None:
    world = World(attempts=1000, days=days)
    troubles = Troubles(world)
    ill = [each for each in troubles.entries() if each.get("release") == bad and each["event"] == "crashed"]
    assert troubles.truth["release"] == {bad}
    assert all(troubles.truth[kind] for kind in KINDS)
    assert sum(each["task"] == BAD_RELEASE[0] for each in ill) > 20
    assert max(each["ms"] for each in ill) < world.start_ms + days * DAY_MS


def test_a_history_with_a_single_release_is_refused() -> None:
    with pytest.raises(ValueError, match="3 days with a deploy every 3 have a single release"):
        World(days=3)


def test_troubles_are_as_frequent_as_is_said_however_long_the_history_is() -> None:
    for attempts in (200_000, 2_000_000):
        entries = Troubles(World(attempts=attempts, troubles=0.01)).entries()
        ran = sum(each["event"] in ("finished", "crashed", "interrupted") for each in entries)
        assert ran == pytest.approx(attempts * 0.01, rel=0.15)
    assert World(attempts=25_000_000).size == 5 * World(attempts=5_000_000).size
