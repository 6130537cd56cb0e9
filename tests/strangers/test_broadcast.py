"""A queue by which every worker gets a copy of each message: its tasks run as without celery_poison."""

from __future__ import annotations

import os
import signal

import kombu
import pytest

from tests.strangers.ids import Ids

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


@BOTH
def test_NEW_23_each_worker_runs_its_copy_of_a_broadcast_and_publishes_what_it_says(
    ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTENS", "1")
    with ids.worker() as first, ids.worker("w2") as second:
        first.wait_ready(), second.wait_ready()
        # On Redis a worker listens to copies from the first turn of its loop on, after it is ready.
        ids.await_that(lambda: len(ids.app.control.ping(timeout=1.0)) == 2, "both answer")
        # kombu on Redis asks whoever publishes for the kind of the exchange.
        to_all = {"queue": "everybody", "declare": [kombu.Exchange("everybody", type="fanout")]}
        ids.app.send_task("fleet.refresh", (), **to_all)
        ids.await_that(lambda: ids.ended() == {7: 2}, "what each published within publishing() has run")
        assert len(ids.marks.all("refresh", "start")) == 2
        ids.await_that(ids.nothing_runs, "forgotten")
        # One copy's process dies: nobody is to blame, and the others are not concerned.
        ids.app.send_task("fleet.refresh", (True,), **to_all)
        ids.await_that(lambda: len(ids.marks.all("refresh", "start")) == 4, "runs twice more")
        here = [mark for mark in ids.marks.all("refresh") if mark.ppid == first.main_pid]
        os.kill(here[-1].pid, signal.SIGKILL)
        ids.marks.open_gate()
        ids.await_that(lambda: ids.ended() == {7: 3}, "the other copy has ended")
        assert ids.send("work", 1).get(timeout=120) == 1, "other queues are guarded as ever"
        assert not ids.quarantine.list(candidates=True) and not ids.quarantine.list()
        assert sum(worker.unguarded for worker in ids.quarantine.queries.workers(1000)) == 0
    assert "every worker gets a copy of each message sent to everybody" in first.log_text()
