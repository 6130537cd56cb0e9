"""NEW-1 with poison_trial="queue": suspects are tried by a worker of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.desk.survey import overview
from celery_poison.testing import Supervisor, Worker
from tests import PATIENCE, sampled
from tests.cells.conftest import Court

QUEUE = "celery.trial"
BYSTANDERS = 2
#: The nodes, as a Supervisor names them.
TRIAL, OTHER = "w1", "w2"


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_1_suspects_are_tried_by_the_worker_of_the_trial_queue_and_keep_their_own_queue(
    new_court: Callable[..., Court], broker_url: str
) -> None:
    court = new_court(broker_url, poison_trial="queue")
    assert _warnings(court), "nobody serves it yet"
    retrier = court.suspect("trial.ends", "retries")
    innocents = [court.send("slow", 0.5) for _ in range(BYSTANDERS)]
    poison = court.send("kill_main")
    with _fleet(court) as fleet:
        court.await_that(
            lambda: court.quarantine.list() and not court.suspects(), "one convicted, the others cleared"
        )
        assert [innocent.get(timeout=PATIENCE) for innocent in innocents] == [0.5] * BYSTANDERS
        assert retrier.get(timeout=PATIENCE) == "retries"
        assert fleet.deaths_by_worker() == {TRIAL: 1, OTHER: 1}, "it died beside others, then alone"
        (kept,) = court.quarantine.list()
        assert (kept.id, kept.crashes, kept.queue) == (poison.id, 2, "celery")
        assert not _warnings(court)
        court.quarantine.release([poison.id], actor="ann")
        court.await_that(lambda: fleet.deaths_by_worker()[TRIAL] == 2, "tried again, on probation")
        court.await_that(court.quarantine.list, "convicted by one death")
        assert fleet.deaths_by_worker()[OTHER] == 1
    assert {entry["queue"] for entry in court.events("crashed", "finished", "parked")} == {"celery"}
    tried = [entry for entry in court.events("crashed") if _node(entry["worker"]) == TRIAL]
    assert [(entry["id"], entry["outcome"]) for entry in tried] == [(poison.id, "exact")] * 2
    (first, _) = [e for e in court.events("finished") if e["id"] == retrier.id]
    # The retry is tried too: only a run to its end clears it.
    assert (_node(first["worker"]), first["outcome"]) == (TRIAL, "retry")
    released = [e for e in court.events("parked") if e["id"] == poison.id and e["note"] == "for its trial"]
    assert {_node(entry["worker"]) for entry in released} == {OTHER}
    assert len(released) >= 2, "released to its own queue, and sent to its trial from there"


def _node(worker: str) -> str:
    return worker.partition("@")[0]


def _fleet(court: Court) -> Supervisor:
    """One worker that serves the trial queue, and one for everything else; each is started again."""

    def make(name: str) -> Worker:
        if name == TRIAL:
            return court.worker(name, concurrency=1, queues=[QUEUE])
        return court.worker(name, concurrency=BYSTANDERS + 1)

    return Supervisor(make, 2)


def _warnings(court: Court) -> list[str]:
    return [said for said in overview(court.app).warnings if repr(QUEUE) in said]
