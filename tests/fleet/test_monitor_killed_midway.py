"""A monitor that dies, or is stopped, at any one of its commands in the middle of a recovery.

All of what a worker can leave behind is laid out once; each case has a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.fleet.deathbed import FAILED, STRUCK, Deathbed
from tests.fleet.forked import DIED, Forked, die, do, stop

NewUrl = Callable[[], str]


@pytest.fixture
def dead_worker(deathbed: Deathbed) -> Deathbed:
    do(deathbed.lay_out)
    deathbed.wait_until_gone()
    return deathbed


@pytest.fixture
def undisturbed(dead_worker: Deathbed, new_redis_url: NewUrl) -> Deathbed:
    """What one monitor makes of it when nothing comes in between."""
    scene = dead_worker.copy_to(new_redis_url())
    do(lambda: scene.monitor("only"))
    return scene


def _cases(dead_worker: Deathbed, new_redis_url: NewUrl) -> Iterator[tuple[int, Deathbed]]:
    for number in count(1):
        yield number, dead_worker.copy_to(new_redis_url())


def test_EMS_6_a_dead_worker_is_recovered_as_each_of_its_starts_deserves(undisturbed: Deathbed) -> None:
    seen = undisturbed.picture()
    counts = seen["counts"]
    assert {name for name, c in counts.items() if c.get(b"strikes", b"0") != b"0"} == STRUCK
    assert {name for name, c in counts.items() if c.get(b"failures", b"0") != b"0"} == FAILED
    assert seen["candidates"] == {name.encode() for name in STRUCK}
    assert seen["running"] == {"finished", "finished too", "stored its success"}, "copies will be recognised"
    assert not (seen["unacked"] or seen["arriving"] or seen["open"])
    ids = [id for queue in seen["queued"].values() for id in queue.elements()]
    assert len(ids) == len(set(ids)) == 16
    assert "acknowledged" not in ids


@pytest.mark.matrix
def test_EMS_6_a_monitor_killed_at_any_command_is_followed_by_another_that_finishes(
    dead_worker: Deathbed, undisturbed: Deathbed, new_redis_url: NewUrl
) -> None:
    expected = undisturbed.picture()
    for number, scene in _cases(dead_worker, new_redis_url):
        first = Forked(lambda: scene.monitor("first"), number, die)  # noqa: B023 - done before the next
        first.wait()
        if first.status != DIED:
            break
        scene.free_the_lock()
        do(lambda: scene.monitor("second"))  # noqa: B023
        assert scene.picture() == expected, f"killed before its command {number}"
    assert number > 20, "it was killed at every command of its recovery"


@pytest.mark.matrix
def test_EMS_4_a_monitor_stopped_at_any_command_changes_nothing_more_when_it_goes_on(
    dead_worker: Deathbed, undisturbed: Deathbed, new_redis_url: NewUrl
) -> None:
    """Another has finished the recovery meanwhile, and a worker has begun to run what was put back."""
    expected = undisturbed.picture()
    for number, scene in _cases(dead_worker, new_redis_url):
        first = Forked(lambda: scene.monitor("first"), number, stop)  # noqa: B023 - done before the next
        if not first.wait():
            break
        try:
            scene.free_the_lock()
            do(lambda: scene.monitor("second"))  # noqa: B023
            assert scene.picture() == expected, f"stopped before its command {number}"
            do(scene.new_owner)
            before = scene.everything()
            first.resume()
            first.wait()
        except BaseException:
            first.kill()
            raise
        assert scene.everything() == before, f"stopped before its command {number}"
    assert number > 20, "it was stopped at every command of its recovery"


@pytest.mark.matrix
def test_EMS_3_two_monitors_that_take_the_lock_from_each_other_double_nothing(
    dead_worker: Deathbed, undisturbed: Deathbed, new_redis_url: NewUrl
) -> None:
    expected, changes = undisturbed.picture(), 0
    for number in range(10):
        scene = dead_worker.copy_to(new_redis_url())
        both = [Forked(lambda name=name: scene.monitor(name, 20)) for name in ("one", "other")]  # noqa: B023
        for _ in range(200):
            scene.free_the_lock()
        for monitor in both:
            monitor.wait()
        scene.free_the_lock()
        do(lambda: scene.monitor("third"))  # noqa: B023
        assert scene.picture() == expected, f"race {number}"
        changes += scene.changes_of_hands()
    assert changes > 40, "each of the two was active more than once"
