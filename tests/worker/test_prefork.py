"""What the hooks into the prefork pool prevent."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub

from celery_poison.worker.prefork import watch_again
from tests.apps.harness import Fleet


@pytest.mark.parametrize("untracked", [True, False])
def test_NEW_9_a_loop_begins_although_a_process_has_ended_that_the_pool_has_not_missed_yet(
    untracked: bool,
) -> None:
    """Its pipe is closed, and it cannot be waited for yet: Celery's own worker ends with a ValueError."""
    ours, theirs = os.pipe()
    pool, hub, ended = AsynPool.__new__(AsynPool), Hub(), list[object]()
    process = SimpleNamespace(_popen=SimpleNamespace(sentinel=ours))
    pool._event_process_exit = lambda hub, process: ended.append(process)
    pool._track_child_process(process, hub)
    if untracked:
        pool._untrack_child_process(process, hub)
        with pytest.raises((ValueError, AttributeError), match="None"):  # the second one before kombu 5.7
            pool._track_child_process(process, hub)
    watch_again(SimpleNamespace(_pool=SimpleNamespace(_pool=[process])))
    pool._track_child_process(process, hub)
    os.close(theirs)
    next(hub.loop)
    assert ended == [process]
    pool._untrack_child_process(process, hub)
    os.close(ours)


def test_NEW_9_a_worker_that_waits_for_its_processes_reads_what_they_still_say(
    new_fleet: Callable[..., Fleet], redis_url: str
) -> None:
    """Unread, it keeps a process alive for half a minute, for which whoever stops workers may not wait."""
    fleet = new_fleet(redis_url)
    with fleet.worker(concurrency=1, args=["-I", "tests.worker.forgetful"]) as worker:
        worker.wait_ready()
        fleet.send("busy", 1, 2.0)
        fleet.await_that(lambda: fleet.marks.count("busy", "start")[1] == 1, "it runs")
        worker.terminate()
        assert worker.wait() == 0
    assert fleet.marks.count("busy", "end")[1] == 1
