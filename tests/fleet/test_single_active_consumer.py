"""A queue with `x-single-active-consumer`: one worker gets all messages, another stands by (EMS-1, EMS-3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from celery_poison.desk import queues
from tests.cli.conftest import Console
from tests.fleet.crew import Watched

ONE_CONSUMER = {
    "celery": {
        "exchange": "celery",
        "routing_key": "celery",
        "queue_arguments": {"x-single-active-consumer": True},
    }
}
#: What a worker of two slots takes at once; more wait in the queue.
PREFETCHED = 8


def test_EMS_3_the_standby_of_a_single_active_consumer_takes_over_and_is_no_deaf_worker(
    new_crew: Callable[..., Watched], rabbit_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its heartbeat tells nothing during this test: a death is noticed by the connections that are gone.
    crew = new_crew(rabbit_url, task_queues=ONE_CONSUMER, poison_activation_interval=600.0)
    console = Console(crew.app)
    with crew.worker() as active:
        results = crew.hold(PREFETCHED + 2)
        held = crew.await_held(active, 2)
        with crew.worker("w2") as standby:
            standby.wait_ready()
            monkeypatch.setattr(queues, "QUIET_FOR", 0.5)
            crew.await_that(lambda: _is_quiet(crew, standby.hostname), "it has heard nothing for long")
            assert crew.left_behind()["celery"] == 2, "messages wait, and not for it"
            assert console.out("ready", standby.hostname) == f"ready: {standby.hostname}\n"
            seen = console.json("status")
            assert (seen["deaf"], seen["faults"]) == ([], [])
            assert not crew.held_by(standby)
            active.kill_group()
            (lost,) = crew.await_events("worker_lost")
            assert lost["worker"].startswith(f"{active.hostname}/")
            crew.await_that(lambda: _begun_twice(crew) == held, "the suspects run again, beside the pool")
            crew.let_go()
            crew.await_invariants(results, flagged=held)
            assert _begun_twice(crew) == held, "each suspect, and nothing else"
            assert {entry["id"] for entry in crew.events("cleared")} == held
    assert "Traceback" not in crew.log_text()


def _is_quiet(crew: Watched, node: str) -> bool:
    workers = crew.quarantine.queries.workers(1000)
    return any(queues.is_quiet(worker) for worker in workers if worker.node == node)


def _begun_twice(crew: Watched) -> set[str]:
    begun = Counter(mark.id for mark in crew.marks.all("holds", "start"))
    return {id for id, times in begun.items() if times > 1}
