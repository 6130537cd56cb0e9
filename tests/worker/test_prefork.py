"""What the hooks into the prefork pool prevent."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from billiard import get_context
from billiard.pool import Pool
from billiard.queues import _SimpleQueue
from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub

from celery_poison.worker.pool_processes import follow, watch_again
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


def test_NEW_9_the_event_loop_never_waits_for_a_result_that_was_read_in_its_place() -> None:
    """A cold shutdown reads it in a signal handler, on top of the loop, which then finds the pipe empty."""
    results, (asked, ask), said = _SimpleQueue(rnonblock=True), os.pipe(), list[object]()

    def hear(result: object) -> None:
        said.append(result)
        os.write(ask, b".")

    def speak_and_wait_until_heard() -> None:
        results.put("its end")
        os.read(asked, 1)

    process = get_context("fork").Process(target=speak_and_wait_until_heard)
    process.outq = results
    process.start()
    pool = Pool.__new__(Pool)
    pool._pool, pool._result_handler = [process], SimpleNamespace(on_state_change=hear)
    follow(SimpleNamespace(_pool=pool), lambda pid, status, peak: None)
    process.join()
    assert said == ["its end"]
    assert not os.get_blocking(results._reader.fileno())
    os.close(asked)
    os.close(ask)
