"""A worker that was asked to leave leaves, whatever its pool has lost sight of."""

from __future__ import annotations

from collections.abc import Callable

from tests.apps.harness import Fleet


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
