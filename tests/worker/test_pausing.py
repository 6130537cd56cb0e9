"""What a person pauses stays in place, and nobody behind it is blocked; it goes on when it is resumed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.broker.kinds import depth
from tests import PATIENCE
from tests.worker.conftest import Crew

BOTH = pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)


def _waiting(crew: Crew, queue: str) -> int:
    with crew.app.connection_for_read() as connection:
        return depth(connection, queue)


def _started(crew: Crew, task: str = "healthy") -> list[int]:
    return [mark.n for mark in crew.marks.all(task, "start")]


def _log_has(crew: Crew, sentence: str, times: int = 1) -> None:
    crew.await_that(lambda: crew.log_text().count(sentence) == times, sentence)


@BOTH
def test_a_paused_queue_is_not_consumed_and_what_was_prefetched_goes_back(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, worker_prefetch_multiplier=4)
    first = [crew.send("healthy", n, queue="mails") for n in range(3)]
    crew.quarantine.pause_queue("mails", note="relay is down", force=True)
    with crew.worker(concurrency=1, queues=["celery", "mails"]) as worker:
        worker.wait_ready()
        assert crew.send("healthy", 10).get(timeout=PATIENCE) == 10, "the other queue is consumed"
        assert _started(crew) == [10] and _waiting(crew, "mails") == 3, "also by a worker that starts"
        (record,) = crew.quarantine.queries.workers(60_000)
        assert (record.queues, record.paused) == ("celery", "mails")

        crew.quarantine.resume_queue("mails")
        assert [sent.get(timeout=PATIENCE) for sent in first] == [0, 1, 2]
        assert _started(crew) == [10, 0, 1, 2]

        crew.send("gated", 1, queue="mails")
        crew.await_that(lambda: _started(crew, "gated"), "it holds the only slot")
        held = [crew.send("healthy", n, queue="mails") for n in range(20, 23)]
        crew.await_that(lambda: not _waiting(crew, "mails"), "prefetched")
        crew.quarantine.pause_queue("mails")
        crew.await_that(lambda: _waiting(crew, "mails") == 3, "put back, while the slot is still taken")
        crew.marks.open_gate()
        assert crew.send("healthy", 11).get(timeout=PATIENCE) == 11, "their places in the pool are free"
        assert crew.marks.all("gated", "end"), "what had begun went on"
        assert _started(crew)[4:] == [11] and _waiting(crew, "mails") == 3

        crew.quarantine.resume_queue("mails")
        assert [sent.get(timeout=PATIENCE) for sent in held] == [20, 21, 22]
        assert sorted(_started(crew)[5:]) == [20, 21, 22], "a poll under way may have taken one out of order"
    assert crew.no_strikes()
    crew.await_that(crew.nothing_runs, "forgotten")


@BOTH
def test_NEW_6_the_edited_copy_of_a_message_waits_like_any_other_while_its_task_is_paused(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url)
    with crew.worker(concurrency=1):
        sent = crew.send("asks", "quarantine")
        crew.await_that(crew.quarantine.list, "in quarantine")
        crew.quarantine.pause_task("fleet.asks")
        _log_has(crew, "task fleet.asks is paused by ")
        assert crew.quarantine.edit(sent.id, args=["nothing"]).done
        crew.await_that(lambda: crew.quarantine.queries.totals()["parked"] == 1, "parked")
        crew.quarantine.resume_task("fleet.asks")
        assert sent.get(timeout=PATIENCE)
        crew.await_that(crew.nothing_runs, "forgotten")
    assert crew.starts("asks") == 2


@BOTH
def test_messages_of_a_paused_task_are_parked_and_take_no_slot_from_those_behind_them(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, worker_prefetch_multiplier=4)
    with crew.worker(concurrency=1) as worker:
        worker.wait_ready()
        crew.send("gated", 1)
        crew.await_that(lambda: _started(crew, "gated"), "it holds the only slot")
        before = [crew.send("adds", [n]) for n in range(3)]
        crew.await_that(lambda: not _waiting(crew, "celery"), "prefetched")
        crew.quarantine.pause_task("fleet.adds", note="wrong sums")
        _log_has(crew, "task fleet.adds is paused by ")
        after = [crew.send("adds", [n]) for n in range(3, 6)]
        parked = crew.quarantine.queries.totals
        crew.await_that(lambda: parked()["parked"] == 6, "parked, while the slot is still taken")
        crew.marks.open_gate()
        assert crew.send("healthy", 9).get(timeout=PATIENCE) == 9
        assert not crew.marks.all("adds") and parked()["parked"] == 6
    with crew.worker("w2", concurrency=1) as worker:
        worker.wait_ready()
        sent = crew.send("adds", [6])
        crew.await_that(lambda: parked()["parked"] == 7, "a worker that starts knows of it")
        crew.quarantine.resume_task("fleet.adds")
        results = [result.get(timeout=PATIENCE) for result in (*before, *after, sent)]
        assert results == list(range(7))
        assert crew.send("adds", [7]).get(timeout=PATIENCE) == 7
    assert crew.no_strikes() and not parked()["parked"]
    assert sorted(entry["event"] for entry in crew.events("paused", "resumed")) == ["paused", "resumed"]
