"""A worker stops consuming a queue whose tasks fail, one after the other, and goes on by time or by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_poison.broker.kinds import depth
from celery_poison.desk.overview import Level
from celery_poison.desk.survey import overview
from tests import PATIENCE, sampled
from tests.apps.events import Watcher
from tests.worker.conftest import Crew

QUEUES = ["celery", "mails"]
SETTINGS = {"poison_suspend_after_failures": 3, "worker_prefetch_multiplier": 4}


def _waiting(crew: Crew, queue: str) -> int:
    with crew.app.connection_for_read() as connection:
        return depth(connection, queue)


def _suspended(crew: Crew, times: int = 1) -> list[str]:
    crew.await_that(lambda: len(crew.events("endpoint_suspended")) == times, f"suspended {times} times")
    return [entry["note"] for entry in crew.events("endpoint_suspended")]


@pytest.mark.parametrize("broker_url", ["redis", "rabbitmq"], indirect=True)
def test_WAS_6_WAS_7_a_suspended_worker_leaves_its_queue_alone_and_the_poison_moves_all_the_same(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, **SETTINGS, poison_suspend_for=3600)
    with crew.worker(concurrency=1, queues=QUEUES):
        poison = crew.send("asks", "rollback", queue="mails")
        assert _suspended(crew) == ["3 failures in a row"]
        crew.await_that(crew.quarantine.list, "it has reached its threshold, and is moved (WAS-7)")
        (kept,) = crew.quarantine.list()
        assert (kept.id, kept.failures, kept.cause) == (poison.id, 3, "failures")
        waits = crew.send("healthy", 1, queue="mails")
        assert crew.send("healthy", 2).get(timeout=PATIENCE) == 2, "its other queue is consumed"
        assert _waiting(crew, "mails") == 1
    (pause,) = crew.quarantine.pauses()
    assert (pause.name, pause.worker, pause.note) == ("mails", "w1@test", "3 failures in a row")
    with crew.worker(concurrency=1, queues=QUEUES) as again:
        again.wait_ready()
        assert crew.send("healthy", 3).get(timeout=PATIENCE) == 3
        assert _waiting(crew, "mails") == 1, "a restart does not end it"
        crew.quarantine.resume_queue("mails", worker="w1@test", actor="ann")
        assert waits.get(timeout=PATIENCE) == 1
    assert [entry["actor"] for entry in crew.events("endpoint_resumed")] == ["ann"]
    assert not crew.quarantine.pauses()


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_WAS_6_when_its_time_is_over_one_message_is_tried_and_decides(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, **SETTINGS, poison_suspend_for=2)
    with Watcher(crew.app) as watcher, crew.worker(concurrency=2, queues=QUEUES, args=["-E"]):
        crew.await_that(lambda: watcher.state.workers, "it sends events")
        sent = [crew.send("asks", "raise", queue="mails") for _ in range(3)]
        _suspended(crew)
        sent += [crew.send("asks", "raise", queue="mails") for _ in range(6)]
        assert _suspended(crew, 2)[1] == "its probe failed"
        assert _runs_before_the_second(crew) == 4, "one was tried: there are two slots, and more waited"
        crew.marks.repair()
        crew.await_that(lambda: crew.starts("asks") == len(sent), "the next probe succeeds, and all are run")
        assert crew.send("healthy", 1, queue="mails").get(timeout=PATIENCE) == 1
    assert "its probe succeeded" in crew.log_text()
    assert len(crew.events("endpoint_suspended")) == len(crew.events("endpoint_resumed")) == 2
    assert crew.no_strikes() and not crew.quarantine.pauses()
    told = [watcher.told(f"poison-endpoint-{what}") for what in ("suspended", "resumed")]
    assert [event["reason"] for event in told[0]] == ["3 failures in a row", "its probe failed"]
    assert {(event["queue"], event["incarnation"].split("/")[0]) for event in told[0] + told[1]} == {
        ("mails", "w1@test")
    }


def _runs_before_the_second(crew: Crew) -> int:
    kinds = [entry["event"] for entry in crew.events("finished", "endpoint_suspended")]
    second = kinds.index("endpoint_suspended", kinds.index("endpoint_suspended") + 1)
    return kinds[:second].count("finished")


def test_WAS_6_calls_that_do_not_fit_and_limits_that_messages_bring_suspend_no_queue(
    new_crew: Callable[..., Crew], redis_url: str
) -> None:
    crew = new_crew(redis_url, **SETTINGS, poison_suspend_for=3600)
    with crew.worker(concurrency=1):
        wrong = [crew.app.send_task("fleet.asks", kwargs={"nonsense": n}) for n in range(3)]
        short = [crew.send("hard_limit", n, time_limit=0.2).id for n in range(2)]
        assert crew.send("healthy", 1).get(timeout=PATIENCE) == 1
        assert {each.state for each in wrong} == {"FAILURE"}
        crew.await_that(
            lambda: {kept.id for kept in crew.quarantine.list()} == set(short), "two cut off each"
        )
        assert not crew.events("endpoint_suspended") and not crew.quarantine.pauses()
        for _ in range(3):
            crew.send("asks", "raise")
        assert _suspended(crew) == ["3 failures in a row"], "it would have been"


@pytest.mark.parametrize("broker_url", sampled(["redis"], ["rabbitmq"]), indirect=True)
def test_NEW_14_status_says_that_nobody_consumes_a_queue_while_messages_wait_and_what_to_type(
    new_crew: Callable[..., Crew], broker_url: str
) -> None:
    crew = new_crew(broker_url, **SETTINGS, poison_suspend_for=3600)
    with crew.worker(concurrency=1):
        crew.send("asks", "rollback")
        _suspended(crew)
        crew.await_that(crew.quarantine.list, "it has reached its threshold")
        mids = [record.mid for record in crew.quarantine.list()]
        assert all(outcome.done for outcome in crew.quarantine.discard(mids))
        crew.await_that(lambda: not crew.quarantine.list(), "nothing else is to be decided")
        waiting = [crew.send("healthy", n) for n in range(10)]
        # Just started, no monitor has the lock yet, which is worse.
        crew.await_that(
            lambda: (o := overview(crew.app)).panel("held") and o.level is Level.DECIDE, "noticed"
        )
        seen = overview(crew.app)
        assert "all is well" not in seen.verdict[0]
        assert "queue celery is paused by w1@" in seen.verdict[0] and "10 messages wait" in seen.verdict[0]
        (typed,) = seen.next
        assert typed.endswith("poison resume --queue celery")
        crew.quarantine.resume_queue("celery")
        assert [result.get(timeout=PATIENCE) for result in waiting] == [*range(10)]
        assert overview(crew.app).level is Level.WELL
